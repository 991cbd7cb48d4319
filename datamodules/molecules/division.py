"""Who gets which molecules: the server's train, val and test part, and the training part shared out among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datamodules.molecules import partition as shares
from datamodules.molecules import split as splits
from datamodules.molecules.table import MoleculeSet
from datamodules.seeds import derive_seed


@dataclass(frozen=True)
class DivisionSpec:
    """How molecules are divided; the options of ``MoleculeDataModule`` of the same names."""

    partition: str
    num_clients: int
    alpha: float
    seed: int
    split: str
    split_seed: int | None
    min_client_size: int | None
    client_column: str | None
    label_task: int
    client_holdout: float


@dataclass(frozen=True)
class Division:
    """M molecules divided; all positions are into the set.

    Attributes:
        groups: Scaffold group of each molecule, int64 ``(M,)``.
        server: Positions of ``train``, ``val`` and ``test``.
        clients: Positions of each client's ``train``, ``val``, ``test`` and ``unlabelled``.
        client_names: Names of the clients.
        trained: Positions of all molecules that some step is taken on, and of training molecules that no client has.
    """

    groups: np.ndarray
    server: dict[str, np.ndarray]
    clients: list[dict[str, np.ndarray]]
    client_names: list[str]
    trained: np.ndarray

    @property
    def members(self) -> list[np.ndarray]:
        """Positions of each client's training molecules."""
        return [parts["train"] for parts in self.clients]


def divide(
    molecules: MoleculeSet, groups: np.ndarray, spec: DivisionSpec, sizes: tuple[int, int, int], regression: bool
) -> Division:
    """Split molecules, and share the training part out.

    Args:
        molecules: All of them.
        groups: Scaffold group of each, ``(M,)``.
        spec: How.
        sizes: Sizes of train, val and test.
        regression: Whether labels are values.

    Raises:
        ValueError: Values that cannot work with these molecules.
    """
    server = _split(groups, spec, sizes)
    members, names = _share(molecules, groups, server["train"], spec, regression)
    members = [np.sort(server["train"][part]) for part in members]
    labelled = np.isfinite(molecules.packed.y.numpy()).any(1)
    clients = [_hold_out(client, part, labelled, spec) for client, part in enumerate(members)]
    held = [parts[name] for parts in clients for name in ("val", "test", "unlabelled")]
    return Division(groups, server, clients, names, np.setdiff1d(server["train"], np.concatenate(held)))


def _split(groups: np.ndarray, spec: DivisionSpec, sizes: tuple[int, int, int]) -> dict[str, np.ndarray]:
    if spec.split == "official":
        return splits.official_split(len(groups), sizes)
    if spec.split == "scaffold":
        parts = splits.scaffold_split(groups, sizes)
    else:
        seed = spec.seed if spec.split_seed is None else spec.split_seed
        parts = splits.random_split(len(groups), derive_seed(seed, "split"), sizes)
    return {name: np.sort(part) for name, part in parts.items()}


def _share(
    molecules: MoleculeSet, groups: np.ndarray, train: np.ndarray, spec: DivisionSpec, regression: bool
) -> tuple[list[np.ndarray], list[str]]:
    """Positions within ``train`` of each client, and the clients' names."""
    if spec.partition == "column":
        members, names = shares.column_partition(_client_column(molecules, spec.client_column))
        return [np.flatnonzero(np.isin(train, part)) for part in members], names
    size, clients, seed = len(train), spec.num_clients, derive_seed(spec.seed, "partition")
    least = min(64, size // (2 * clients)) if spec.min_client_size is None else spec.min_client_size
    names = [str(client) for client in range(clients)]
    if spec.partition == "official":
        least = 64 if spec.min_client_size is None else spec.min_client_size
        return shares.official_partition(groups[train], clients, spec.alpha, least), names
    if spec.partition == "scaffold_lda":
        return shares.scaffold_lda(groups[train], clients, spec.alpha, seed, least), names
    if spec.partition == "label":
        y = molecules.packed.y.numpy()
        if not 0 <= spec.label_task < y.shape[1]:
            raise ValueError(f"`data.init_args.label_task` is {spec.label_task}, but the tasks are 0 to {y.shape[1] - 1}.")
        return shares.label_partition(y[train, spec.label_task], clients, spec.alpha, regression, seed, least), names
    return shares.iid_partition(size, clients, seed), names


def _client_column(molecules: MoleculeSet, name: str | None) -> list:
    if name is None or name not in molecules.columns:
        columns = ", ".join(f"`{column}`" for column in molecules.columns) or "none besides SMILES and labels"
        raise ValueError(f"`data.init_args.client_column` is {name!r}, but the table has no such column: it has {columns}.")
    return molecules.columns[name]


def _hold_out(client: int, part: np.ndarray, labelled: np.ndarray, spec: DivisionSpec) -> dict[str, np.ndarray]:
    """A client's parts. A training molecule without any label is none: its steps would be weight decay alone, and it
    would count in the average. It is ``unlabelled``: predicted, and nothing else."""
    held = round(spec.client_holdout * len(part))
    order = np.random.default_rng(derive_seed(spec.seed, "holdout", client)).permutation(part)
    train = order[held:]
    parts = {
        "train": train[labelled[train]],
        "val": order[: held // 2],
        "test": order[held // 2 : held],
        "unlabelled": train[~labelled[train]],
    }
    return {name: np.sort(positions) for name, positions in parts.items()}


def scaffold_distances(division: Division, num_clients: int, seed: int) -> tuple[np.ndarray, float]:
    """Total variation of each client's scaffolds from the training part's, and the mean of a random split."""
    train, labels = division.server["train"], division.groups
    order = np.argsort(train)
    members = [order[np.searchsorted(train[order], part)] for part in division.members]
    iid = shares.iid_partition(len(train), min(num_clients, len(train)), derive_seed(seed, "iid reference"))
    return (shares.total_variation(labels[train], members), float(np.nanmean(shares.total_variation(labels[train], iid))))


def list_rows(molecules: MoleculeSet, positions: np.ndarray) -> list[int]:
    """Rows of the original table."""
    return molecules.packed.sample_id.numpy()[positions].tolist()


def list_members(molecules: MoleculeSet, clients: Sequence[Mapping[str, np.ndarray]]) -> list[list[int]]:
    """Rows of the original table that each client holds, in whatever part."""
    return [sorted(list_rows(molecules, np.concatenate(list(parts.values())))) for parts in clients]


def list_unassigned(molecules: MoleculeSet, division: Division) -> list[int]:
    """Training rows that no client got (``official`` only)."""
    train = set(list_rows(molecules, division.server["train"]))
    return sorted(train.difference(*list_members(molecules, division.clients)))
