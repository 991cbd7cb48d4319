"""Molecular property prediction as a federated data module: a server's table, split, and shared out among clients.

    rows -> usable molecules -> train / val / test (global) -> the training part among clients by scaffold

A data set is a subclass of ``MoleculeDataModule`` with one method, ``load() -> MoleculeSet``. Validation and test
molecules stay on the server, as in FedChem's protocol; with ``client_holdout`` each client has some of its own, too.
"""
from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from rdkit import rdBase

from datamodules.molecules import findings as tell
from datamodules.molecules import partition as shares
from datamodules.molecules import split as splits
from datamodules.molecules.cache import default_cache_dir
from datamodules.molecules.contradictions import contradiction_findings
from datamodules.molecules.encode import FRAGMENTS
from datamodules.molecules.featuriser import FEATURISER, NUM_ATOM_FEATURES, NUM_BOND_FEATURES
from datamodules.molecules.loaders import ClientMoleculeDataModule, MoleculeLoaders, content_sha256, label_statistics
from datamodules.molecules.scaffold import ACYCLIC, scaffold_labels
from datamodules.molecules.table import MoleculeSet, MoleculeTable, check_policy, molecule_set
from datamodules.seeds import derive_seed

PARTITIONS = ("scaffold_lda", "official", "iid", "random", "label", "column")
SPLITS = ("random", "scaffold", "official")
LARGEST_LABEL = 1e15  # squared errors of a batch stay below what float32 holds


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
        if not isinstance(num_clients, int) or isinstance(num_clients, bool) or num_clients < 1:
            raise ValueError(f"`data.init_args.num_clients` must be a whole number of at least 1, got {num_clients!r}.")
        for name, number in (("min_client_size", min_client_size), ("featurise_workers", featurise_workers)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
                raise ValueError(f"`data.init_args.{name}` must be a whole number of at least 0, or null, got {number!r}.")
        if not 0 <= client_holdout < 1:
            raise ValueError(f"`data.init_args.client_holdout` must be at least 0 and below 1, got {client_holdout}.")
        if not alpha > 0:
            raise ValueError(f"`data.init_args.alpha` must be a positive number, got {alpha}.")
        if (partition == "column") != (client_column is not None):
            raise ValueError("`data.init_args.partition: column` and `data.init_args.client_column` belong together: "
                             f"got partition {partition!r} and client_column {client_column!r}.")
        self.num_clients, self.partition, self.alpha, self.seed = num_clients, partition, alpha, seed
        self.split, self.split_seed, self.fractions = split, split_seed, splits.check_fractions(fractions)
        self.min_client_size, self.client_column, self.label_task = min_client_size, client_column, label_task
        self.acyclic, self.invalid, self.fragments = acyclic, invalid, fragments
        self.normalize_labels, self.client_holdout = normalize_labels, client_holdout
        self.featurise_workers = featurise_workers
        self.cache_dir = str(default_cache_dir()) if cache_dir == "auto" else cache_dir
        self._molecules: MoleculeSet | None = None
        self._client_parts: list[dict[str, np.ndarray]] = []
        self._client_names: list[str] = []
        self._clients: list[ClientMoleculeDataModule] | None = None

    # What a data set implements

    def load(self) -> MoleculeSet:
        """All usable molecules of the data set; ``self.from_table(table)`` makes them from SMILES."""
        raise NotImplementedError(f"`{type(self).__name__}` must define `load(self) -> MoleculeSet`.")

    def from_table(self, table: MoleculeTable) -> MoleculeSet:
        """Featurises a table under the options ``invalid``, ``fragments``, ``featurise_workers`` and ``cache_dir``."""
        return molecule_set(table, self.invalid, self.fragments, self.featurise_workers, self.cache_dir)

    def part_sizes(self, size: int) -> tuple[int, int, int]:
        """Sizes of train, val and test out of ``size`` molecules."""
        return splits.split_sizes(size, self.fractions)

    # Lightning

    def setup(self, stage: str | None = None) -> None:
        """Load, split and share out. Does nothing the second time."""
        if self._molecules is not None:
            return
        molecules = self.load()
        y = molecules.packed.y.numpy()
        if self.task == "classification":
            _check_classes(y, molecules)
        elif self.task == "regression":
            _check_values(y, molecules)
        else:
            raise ValueError(f"`data.init_args.task` must be regression or classification, got {self.task!r}.")
        if self.normalize_labels and self.task != "regression":
            raise ValueError("`data.init_args.normalize_labels` is for regression; these labels are classes.")
        groups = scaffold_labels(molecules.scaffold, self.acyclic == "spread")
        molecules = replace(molecules, packed=replace(molecules.packed, scaffold=torch.from_numpy(groups).long()))
        split = self._split(groups)
        members = [np.sort(split["train"][part]) for part in self._share(molecules, groups, split["train"])]
        labelled = np.isfinite(y).any(1)
        self._client_parts = [self._hold_out(client, part, labelled) for client, part in enumerate(members)]
        held = [part[name] for part in self._client_parts for name in ("val", "test", "unlabelled")]
        self._groups, self._split_parts = groups, split
        self._train = np.setdiff1d(split["train"], np.concatenate(held))
        self._set_parts(molecules.packed, {**split, "train": self._train})
        self._molecules = molecules

    def _split(self, groups: np.ndarray) -> dict[str, np.ndarray]:
        sizes = self.part_sizes(len(groups))
        if self.split == "official":
            parts = splits.official_split(len(groups), sizes)
        elif self.split == "scaffold":
            parts = splits.scaffold_split(groups, sizes)
        else:
            seed = self.seed if self.split_seed is None else self.split_seed
            parts = splits.random_split(len(groups), derive_seed(seed, "split"), sizes)
        return parts if self.split == "official" else {name: np.sort(part) for name, part in parts.items()}

    def _share(self, molecules: MoleculeSet, groups: np.ndarray, train: np.ndarray) -> list[np.ndarray]:
        """Positions within ``train`` of each client."""
        size, clients, seed = len(train), self.num_clients, derive_seed(self.seed, "partition")
        least = min(64, size // (2 * clients)) if self.min_client_size is None else self.min_client_size
        self._client_names = [str(client) for client in range(clients)]
        if self.partition == "official":
            least = 64 if self.min_client_size is None else self.min_client_size
            return shares.official_partition(groups[train], clients, self.alpha, least)
        if self.partition == "scaffold_lda":
            return shares.scaffold_lda(groups[train], clients, self.alpha, seed, least)
        if self.partition == "label":
            y = molecules.packed.y.numpy()
            if not 0 <= self.label_task < y.shape[1]:
                raise ValueError(f"`data.init_args.label_task` is {self.label_task}, but the tasks are 0 to "
                                 f"{y.shape[1] - 1}.")
            return shares.label_partition(y[train, self.label_task], clients, self.alpha, self.task == "regression",
                                          seed, least)
        if self.partition == "column":
            if self.client_column not in molecules.columns:
                columns = ", ".join(f"`{name}`" for name in molecules.columns) or "none besides SMILES and labels"
                raise ValueError(f"`data.init_args.client_column` is {self.client_column!r}, but the table has no such "
                                 f"column: it has {columns}.")
            column = molecules.columns[self.client_column]
            members, self._client_names = shares.column_partition(column)
            self.num_clients = len(members)
            return [np.flatnonzero(np.isin(train, part)) for part in members]
        return shares.iid_partition(size, clients, seed)

    def _hold_out(self, client: int, part: np.ndarray, labelled: np.ndarray) -> dict[str, np.ndarray]:
        """A client's parts. A training molecule without any label is none: its steps would be weight decay alone, and it
        would count in the average. It is ``unlabelled``: predicted, and nothing else."""
        held = round(self.client_holdout * len(part))
        order = np.random.default_rng(derive_seed(self.seed, "holdout", client)).permutation(part)
        train = order[held:]
        parts = {"train": train[labelled[train]], "val": order[:held // 2], "test": order[held // 2:held],
                 "unlabelled": train[~labelled[train]]}
        return {name: np.sort(positions) for name, positions in parts.items()}

    # The federation's data seam

    @property
    def molecules(self) -> MoleculeSet:
        """All usable molecules; positions of parts and clients are into it."""
        if self._molecules is None:
            raise ValueError(f"`{type(self).__name__}` has no data yet: call `setup()` first.")
        return self._molecules

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
        ``auroc``); with ``normalize_labels`` also ``label_mean`` and ``label_std``, lists of ``num_tasks`` numbers."""
        packed, bonds = self.molecules.packed, "atom" in self.molecules.packed.nodes
        schema: dict[str, Any] = {
            "task": self.task, "num_tasks": packed.y.size(1), "atom_features": NUM_ATOM_FEATURES if bonds else 0,
            "bond_features": NUM_BOND_FEATURES if bonds else 0, "positions": "pos" in packed.nodes, "metric": self.metric,
            "task_names": self.task_names, "units": self.units or None, "featuriser": FEATURISER if bonds else "atomic numbers"}
        if self.normalize_labels:
            schema["label_mean"], schema["label_std"] = label_statistics(packed.y[self._train])
        return schema

    def client_datamodules(self) -> list[ClientMoleculeDataModule]:
        """One data module per client, client id = position; the same objects at each call."""
        packed, schema = self.molecules.packed, self.schema
        if self._clients is None:
            self._clients = []
            for parts in self._client_parts:
                own = np.sort(np.concatenate(list(parts.values())))
                local = {name: np.searchsorted(own, part) for name, part in parts.items()}
                self._clients.append(ClientMoleculeDataModule(packed.select(own), local, schema, self.batch_size,
                                                              self.eval_batch_size))
        return self._clients

    def _rows(self, positions: np.ndarray) -> list[int]:
        return self.molecules.packed.sample_id.numpy()[positions].tolist()

    def _membership(self) -> list[list[int]]:
        return [sorted(self._rows(np.concatenate(list(parts.values())))) for parts in self._client_parts]

    def partition_record(self) -> dict[str, Any]:
        """What ``partition.json`` holds: method, seed, the rows of each client with their SHA-256, the rows of the
        server's parts, and training rows that no client got (``official`` only)."""
        membership = self._membership()
        train = set(self._rows(self._split_parts["train"]))
        return {
            "method": self.partition, "seed": self.seed, "alpha": self.alpha, "num_clients": self.num_clients,
            "client_names": self._client_names, "client_sizes": [len(rows) for rows in membership],
            "membership": membership, "sha256": hashlib.sha256(json.dumps(membership).encode()).hexdigest(),
            "lost_edges": 0, "unassigned": sorted(train.difference(*membership)),
            "split": self.split, "split_seed": self.seed if self.split_seed is None else self.split_seed,
            "server": {name: sorted(self._rows(part)) for name, part in self._split_parts.items()},
            "client_holdout": [{name: self._rows(parts[name]) for name in ("val", "test")}
                               for parts in self._client_parts],
            "scaffolds": int(self._groups.max()) + 1, "acyclic": self.acyclic,
            "versions": {"rdkit": rdBase.rdkitVersion},
        }

    def fingerprint(self) -> str:
        """SHA-256 over molecules, labels, split, membership and schema: a resumed run refuses other data."""
        sha = hashlib.sha256(content_sha256(self.molecules.packed, self._split_parts).encode())
        sha.update(json.dumps([self._membership(), self.schema], sort_keys=True).encode())
        for client in self.client_datamodules():
            sha.update(client.fingerprint().encode())
        return sha.hexdigest()

    def report(self) -> dict[str, Any]:
        """What ``inspect`` shows: sizes, labels and scaffolds per client, and findings with remedies.

        ``scaffold_tv`` is the total variation of each client's scaffolds from those of all training molecules,
        ``scaffold_tv_iid`` what a random split of as many clients gives on average.
        """
        molecules, names = self.molecules, self.molecules.task_names
        y, classes = molecules.packed.y.numpy(), self.task == "classification"
        members = [parts["train"] for parts in self._client_parts]
        tv, tv_iid = self.scaffold_distances()
        unassigned = self.partition_record()["unassigned"]
        found = tell.table_findings(molecules, self.fragments, self.acyclic)
        found += tell.split_findings(self._split_parts, self.part_sizes(len(molecules)))
        if unassigned:
            found.append(tell.finding("unassigned", None, len(unassigned), f"{len(unassigned)} training molecules are "
                                      "given to no client, as in the authors' code.", "`data.init_args.partition: "
                                      "scaffold_lda` gives all of them away."))
        found += tell.client_findings(members, self.batch_size, tv, tv_iid)
        found += tell.duplicate_findings(molecules, self._split_parts, self._client_parts, self.acyclic, classes)
        found += contradiction_findings(molecules, self._split_parts, self._client_parts, classes)
        found += tell.label_findings(y, names, classes, self._split_parts, members,
                                     [parts["test"] for parts in self._client_parts])
        return {
            "dataset": type(self).__name__, "partition": self.partition, "split": self.split, **self.schema,
            "task_names": names, "units": molecules.units, "rdkit": rdBase.rdkitVersion,
            "num_molecules": len(molecules), "num_clients": self.num_clients, "client_names": self._client_names,
            "client_sizes": [sum(map(len, parts.values())) for parts in self._client_parts],
            "client_samples": {name: [len(parts[name]) for parts in self._client_parts] for name in splits.PARTS},
            "samples": {name: len(part) for name, part in self._split_parts.items()},
            "labels": [tell.label_summary(y[part], names, classes) for part in members],
            "labels_whole": tell.label_summary(y[self._split_parts["train"]], names, classes),
            "num_scaffolds": int(self._groups.max()) + 1, "acyclic_molecules": molecules.scaffold.count(ACYCLIC),
            "scaffolds_per_client": [len(np.unique(self._groups[part])) for part in members],
            "scaffold_tv": [None if np.isnan(value) else float(value) for value in tv], "scaffold_tv_iid": tv_iid,
            "shared_molecules": tell.shared_molecules(molecules, members),
            "bytes": molecules.packed.nbytes, "findings": found, "dropped_rows": self.dropped_rows,
        }

    def scaffold_distances(self) -> tuple[np.ndarray, float]:
        """Total variation of each client's scaffolds from the training part's, and the mean of a random split."""
        train, labels = self._split_parts["train"], self._groups
        order = np.argsort(train)
        members = [order[np.searchsorted(train[order], parts["train"])] for parts in self._client_parts]
        clients = min(self.num_clients, len(train))
        iid = shares.iid_partition(len(train), clients, derive_seed(self.seed, "iid reference"))
        return (shares.total_variation(labels[train], members),
                float(np.nanmean(shares.total_variation(labels[train], iid))))


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`data.init_args.{name}` must be one of {', '.join(choices)}, got {value!r}.")


def _check_values(y: np.ndarray, molecules: MoleculeSet) -> None:
    wrong = np.argwhere(np.abs(np.nan_to_num(y, nan=0.0, posinf=np.inf)) > LARGEST_LABEL)
    if len(wrong):
        position, task = wrong[0]
        raise ValueError(f"{molecules.where(position)} has label {y[position, task]:g} for task "
                         f"`{molecules.task_names[task]}`, whose square no 32-bit number holds ({len(wrong)} such labels, the "
                         f"largest allowed is {LARGEST_LABEL:g}). Correct it, or give the column in another unit.")


def _check_classes(y: np.ndarray, molecules: MoleculeSet) -> None:
    wrong = np.argwhere(~(np.isnan(y) | (y == 0) | (y == 1)))
    if len(wrong):
        told = "; ".join(f"{molecules.where(position)} has label {y[position, task]:g} for task "
                         f"`{molecules.task_names[task]}`" for position, task in wrong[:3])
        raise ValueError(f"{told}; but the labels of a classification are 0, 1 or blank "
                         f"({len(wrong)} such labels). Correct them, write a column of 0 and 1 for each class, or set "
                         "`data.init_args.task: regression` for measurements.")
