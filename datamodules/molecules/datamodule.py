"""Molecular property prediction as a federated data module: a server's table, split, and shared out among clients.

    rows -> usable molecules -> train / val / test (global) -> the training part among clients by scaffold

A data set is a subclass of ``MoleculeDataModule`` with one method, ``load() -> MoleculeSet``. Validation and test
molecules stay on the server, as in FedChem's protocol; with ``client_holdout`` each client has some of its own, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from datamodules.molecules import split as splits
from datamodules.molecules.cache import default_cache_dir
from datamodules.molecules.division import Division, DivisionSpec, divide, list_members
from datamodules.molecules.encode import FRAGMENTS
from datamodules.molecules.fingerprints import with_fingerprints
from datamodules.molecules.label_checks import check_labels
from datamodules.molecules.loaders import ClientMoleculeDataModule, MoleculeLoaders, content_sha256, label_scale, sum_labels
from datamodules.molecules.report import record_division, report_molecules
from datamodules.molecules.scaffold import scaffold_labels
from datamodules.molecules.schema import molecule_schema
from datamodules.molecules.table import MoleculeSet, MoleculeTable, check_policy, molecule_set

PARTITIONS = ("scaffold_lda", "official", "iid", "random", "label", "column")
SPLITS = ("random", "scaffold", "official")


class MoleculeDataModule(MoleculeLoaders):
    """Base of all molecular data sets.

    Args:
        num_clients: Number of clients, at most that of training molecules. Ignored by ``partition: column``.
        partition: ``scaffold_lda`` (FedChem, repaired: nothing is lost), ``official`` (the authors' code, for
            comparison: loses the last scaffold, knows no seed), ``iid`` (also called ``random``), ``label`` (Dirichlet
            over classes or quantiles of one task) or ``column`` (one client per value of ``client_column``).
        alpha: Dirichlet concentration of the first two and of ``label``: smaller = clients differ more.
        seed: Fixes the split and the partition, with an independent stream for each.
        split: ``random`` (the protocol), ``scaffold`` (test scaffolds never trained on) or ``official`` (the authors'
            permutation).
        split_seed: A seed for the split alone; default ``seed``.
        fractions: Shares of train, val and test.
        min_client_size: Training molecules that each client must get. Default: 64 as in the protocol, or half of a fair
            share where that is less; ``official`` always means 64.
        client_column: Column of the table that names each row's client.
        label_task: Task by whose label ``partition: label`` groups.
        acyclic: ``group`` = molecules without a ring are one scaffold group, ``spread`` = each is its own.
        invalid: Rows that are no molecule: ``drop`` and report them, or ``raise``.
        fragments: ``all`` parts of a salt, or the ``largest``.
        normalize_labels: The model learns ``(y - mean) / std`` of each task, by the training labels: it finds both in
            ``schema["label_mean"]`` and ``["label_std"]``, and scores and predicts in units. Batches hold labels in
            units all the same. Regression only.
        fingerprint_size: Bins S of ECFP counts, which batches then hold as ``fingerprint`` uint8 ``(B, S)``: 2048, say, for
            ``lit_models.LitMoleculeForest``. Default: none.
        fingerprint_radius: Their radius; 2 makes them ECFP4.
        client_holdout: Share of its molecules that each client keeps from training, half for val, half for test.
        batch_size: Molecules of a training step; a smaller client trains on all it has.
        eval_batch_size: Molecules of an evaluation batch.
        featurise_workers: Processes that featurise; None = this one for small tables, all cores for large ones.
        cache_dir: Folder of featurised tables; ``auto`` = ``$XDG_CACHE_HOME/fl_lightning/molecules``, null = no cache.

    Raises:
        ValueError: A value that cannot work, in the names of the YAML file.
    """

    task: str = "regression"
    metric: str = "rmse"

    def __init__(
        self,
        num_clients: int = 4,
        partition: Literal["scaffold_lda", "official", "iid", "random", "label", "column"] = "scaffold_lda",
        alpha: float = 0.1,
        seed: int = 0,
        split: Literal["random", "scaffold", "official"] = "random",
        split_seed: int | None = None,
        fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
        min_client_size: int | None = None,
        client_column: str | None = None,
        label_task: int = 0,
        acyclic: Literal["group", "spread"] = "group",
        invalid: Literal["drop", "raise"] = "drop",
        fragments: Literal["all", "largest"] = "all",
        normalize_labels: bool = False,
        fingerprint_size: int | None = None,
        fingerprint_radius: int = 2,
        client_holdout: float = 0.0,
        batch_size: int = 64,
        eval_batch_size: int = 512,
        featurise_workers: int | None = None,
        cache_dir: str | None = "auto",
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        _one_of("partition", partition, PARTITIONS)
        _one_of("split", split, SPLITS)
        _one_of("acyclic", acyclic, ("group", "spread"))
        _one_of("fragments", fragments, FRAGMENTS)
        check_policy(invalid)
        _check_count("num_clients", num_clients, least=1)
        _check_count("min_client_size", min_client_size)
        _check_count("featurise_workers", featurise_workers)
        _check_count("fingerprint_size", 1 if fingerprint_size is None else fingerprint_size, least=1)
        _check_count("fingerprint_radius", fingerprint_radius)
        if not 0 <= client_holdout < 1:
            raise ValueError(f"`data.init_args.client_holdout` must be at least 0 and below 1, got {client_holdout}.")
        if not alpha > 0:
            raise ValueError(f"`data.init_args.alpha` must be a positive number, got {alpha}.")
        if (partition == "column") != (client_column is not None):
            raise ValueError(
                "`data.init_args.partition: column` and `data.init_args.client_column` belong together: "
                f"got partition {partition!r} and client_column {client_column!r}."
            )
        self.num_clients, self.partition, self.alpha, self.seed = num_clients, partition, alpha, seed
        self.split, self.split_seed, self.fractions = split, split_seed, splits.check_fractions(fractions)
        self.min_client_size, self.client_column, self.label_task = min_client_size, client_column, label_task
        self.acyclic, self.invalid, self.fragments = acyclic, invalid, fragments
        self.normalize_labels, self.client_holdout = normalize_labels, client_holdout
        self.fingerprint_size, self.fingerprint_radius = fingerprint_size, fingerprint_radius
        self.featurise_workers = featurise_workers
        self.cache_dir = str(default_cache_dir()) if cache_dir == "auto" else cache_dir
        self._molecules: MoleculeSet | None = None
        self._division: Division | None = None
        self._clients: list[ClientMoleculeDataModule] | None = None
        self._label_scale: tuple[list[float], list[float]] | None = None

    # What a data set implements

    def load(self) -> MoleculeSet:
        """All usable molecules of the data set; ``self.from_table(table)`` makes them from SMILES."""
        raise NotImplementedError(f"`{type(self).__name__}` must define `load(self) -> MoleculeSet`.")

    def from_table(self, table: MoleculeTable) -> MoleculeSet:
        """Featurises a table under the options ``invalid``, ``fragments``, ``featurise_workers`` and ``cache_dir``."""
        return molecule_set(table, self.invalid, self.fragments, self.featurise_workers, self.cache_dir)

    def with_fingerprints(self, molecules: MoleculeSet) -> MoleculeSet:
        """The molecules with what ``fingerprint_size`` asks for."""
        if self.fingerprint_size is None:
            return molecules
        return with_fingerprints(
            molecules, self.fingerprint_radius, self.fingerprint_size, self.featurise_workers, self.cache_dir
        )

    def part_sizes(self, size: int) -> tuple[int, int, int]:
        """Sizes of train, val and test out of ``size`` molecules."""
        return splits.split_sizes(size, self.fractions)

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out. Does nothing the second time."""
        if self._molecules is not None:
            return
        molecules = self.with_fingerprints(self.load())
        check_labels(molecules, self.task)
        if self.normalize_labels and self.task != "regression":
            raise ValueError("`data.init_args.normalize_labels` is for regression; these labels are classes.")
        groups = scaffold_labels(molecules.scaffold, self.acyclic == "spread")
        molecules = replace(molecules, packed=replace(molecules.packed, scaffold=torch.from_numpy(groups).long()))
        sizes = self.part_sizes(len(groups))
        division = divide(molecules, groups, self._division_spec(), sizes, self.task == "regression")
        self.num_clients = len(division.clients) if self.partition == "column" else self.num_clients
        self._set_parts(molecules.packed, {**division.server, "train": division.trained})
        self._molecules, self._division = molecules, division

    def _division_spec(self) -> DivisionSpec:
        return DivisionSpec(
            self.partition,
            self.num_clients,
            self.alpha,
            self.seed,
            self.split,
            self.split_seed,
            self.min_client_size,
            self.client_column,
            self.label_task,
            self.client_holdout,
        )

    # The federation's data seam

    @property
    def molecules(self) -> MoleculeSet:
        """All usable molecules; positions of parts and clients are into it."""
        if self._molecules is None:
            raise ValueError(f"`{type(self).__name__}` has no data yet: call `setup()` first.")
        return self._molecules

    @property
    def division(self) -> Division:
        """Who has which of the molecules."""
        if self._division is None:
            raise ValueError(f"`{type(self).__name__}` has no data yet: call `setup()` first.")
        return self._division

    @property
    def dropped_rows(self) -> list[dict[str, Any]]:
        """``{"row", "reason", "smiles", ...}`` of each row that could not be used."""
        return self.molecules.dropped_rows

    @property
    def num_rows_read(self) -> int:
        """Number of rows in the data's files: usable ones and ``dropped_rows``."""
        return len(self.molecules) + len(self.dropped_rows)

    @property
    def task_names(self) -> list[str]:
        return self.molecules.task_names

    @property
    def units(self) -> list[str]:
        """Unit of each task, where it is known."""
        return self.molecules.units

    @property
    def schema(self) -> dict[str, Any]:
        """What a model needs, and sites must have alike: ``task``, ``num_tasks``, ``task_names`` and ``units`` (``None`` where
        no unit is known) in the order of the labels, ``atom_features``, ``bond_features`` (both 0 without bonds),
        ``featuriser`` (what these numbers mean), ``positions`` (whether there are some), ``metric`` (``rmse``, ``mae`` or
        ``auroc``); with ``normalize_labels`` also ``label_mean`` and ``label_std``, lists of ``num_tasks`` numbers; with
        fingerprints ``fingerprint_size`` and ``fingerprint_radius``."""
        schema = molecule_schema(self.molecules, self.task, self.metric)
        if self.fingerprint_size is not None:
            schema |= {"fingerprint_size": self.fingerprint_size, "fingerprint_radius": self.fingerprint_radius}
        if self.normalize_labels:
            schema["label_mean"], schema["label_std"] = self._label_scale or self._scale_here()
        return schema

    def _scale_here(self) -> tuple[list[float], list[float]]:
        """That of the clients here; the sums are added in their order, as a server adds them."""
        labels = [sum_labels(self.molecules.packed.y[parts["train"]]) for parts in self.division.clients]
        return label_scale({part: [sum(each) for each in zip(*(own[part] for own in labels), strict=True)]
                            for part in ("count", "sum", "square")})  # fmt: skip

    def use_statistics(self, agreed: Mapping[str, Any]) -> None:
        """Take the scale of all clients' labels, some of whom may be elsewhere."""
        if self.normalize_labels and "labels" in agreed["sums"]:
            self._label_scale = label_scale(agreed["sums"]["labels"])

    def client_datamodules(self) -> list[ClientMoleculeDataModule]:
        """One data module per client, client id = position; the same objects at each call."""
        packed, schema = self.molecules.packed, self.schema
        if self._clients is None:
            self._clients = []
            for parts in self.division.clients:
                own = np.sort(np.concatenate(list(parts.values())))
                local = {name: np.searchsorted(own, part) for name, part in parts.items()}
                self._clients.append(
                    ClientMoleculeDataModule(packed.select(own), local, schema, self.batch_size, self.eval_batch_size)
                )
        return self._clients

    def partition_record(self) -> dict[str, Any]:
        """What ``partition.json`` holds: :func:`~datamodules.molecules.report.record_division`."""
        return record_division(self.molecules, self.division, self._division_spec(), self.acyclic)

    def fingerprint(self) -> str:
        """SHA-256 over molecules, labels, split, membership and schema: a resumed run refuses other data."""
        sha = hashlib.sha256(content_sha256(self.molecules.packed, self.division.server).encode())
        membership = list_members(self.molecules, self.division.clients)
        sha.update(json.dumps([membership, self.schema], sort_keys=True).encode())
        for client in self.client_datamodules():
            sha.update(client.fingerprint().encode())
        return sha.hexdigest()

    def report(self) -> dict[str, Any]:
        """What ``inspect`` shows: :func:`~datamodules.molecules.report.report_molecules`."""
        options = {
            "dataset": type(self).__name__,
            "fragments": self.fragments,
            "acyclic": self.acyclic,
            "batch_size": self.batch_size,
            "sizes": self.part_sizes(len(self.molecules)),
        }
        return report_molecules(self.molecules, self.division, self._division_spec(), self.schema, options)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`data.init_args.{name}` must be one of {', '.join(choices)}, got {value!r}.")


def _check_count(name: str, number: Any, least: int = 0) -> None:
    """A whole number; ``None`` means that it is found out, where 0 is allowed."""
    if number is None and not least:
        return
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        null = "" if least else ", or null"
        raise ValueError(f"`data.init_args.{name}` must be a whole number of at least {least}{null}, got {number!r}.")
