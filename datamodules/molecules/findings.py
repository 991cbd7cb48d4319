"""What ``inspect`` tells about molecules: dropped rows, salts, missing labels, duplicates, leakage, scaffold skew."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datamodules.molecules.scaffold import ACYCLIC
from datamodules.molecules.table import MoleculeSet
from datamodules.report import Finding, finding

NOTHING = "Nothing, if this is meant."


def table_findings(molecules: MoleculeSet) -> list[Finding]:
    """What concerns the rows as such: those left out, salts, molecules without bonds, atoms unknown to the features."""
    found = []
    packed, size = molecules.packed, len(molecules)
    dropped = molecules.dropped_rows
    if dropped:
        rows = ", ".join(str(drop["row"]) for drop in dropped[:10]) + (", ..." if len(dropped) > 10 else "")
        found.append(finding("invalid_rows", None, len(dropped),
                             f"{len(dropped)} rows cannot be used and were left out (rows {rows}).",
                             "Correct them in the file; the reasons are in `dropped_rows`."))
    salts = int((molecules.num_fragments > 1).sum())
    if salts:
        found.append(finding("multi_fragment", None, salts,
                             f"{salts} of {size} molecules are salts or mixtures of several parts.",
                             "`data.init_args.fragments: largest` keeps only the largest part."))
    if "code" in packed.edges:
        bare = int((packed.edge_ptr.diff() == packed.num_atoms).sum())
        if bare:
            found.append(finding("no_bonds", None, bare, f"{bare} of {size} molecules have no bond: atoms do not see "
                                                         "each other there.", NOTHING))
        unknown = packed.atom_table[:, :43].sum(1)[packed.nodes["atom"].long()] == 0
        holders = int(np.unique(np.repeat(np.arange(size), packed.num_atoms.numpy())[unknown.numpy()]).size)
        if holders:
            found.append(finding("unknown_atoms", None, holders,
                                 f"{holders} molecules have an atom (such as `*`) whose element the features do not "
                                 "know: its element features are all zero.", NOTHING))
    acyclic = molecules.scaffold.count(ACYCLIC)
    if acyclic > size / 4:
        found.append(finding("large_scaffold_group", None, acyclic,
                             f"{acyclic} of {size} molecules have no ring and form one scaffold group.",
                             "`data.init_args.acyclic: spread` makes each of them a group of its own."))
    return found


def duplicate_findings(molecules: MoleculeSet, split: Mapping[str, np.ndarray],
                       members: Sequence[np.ndarray]) -> list[Finding]:
    """Molecules that occur more than once (by canonical SMILES): within a client, in several clients, and in both the
    training and an evaluation part, where they flatter the score."""
    found = []
    name = np.array(molecules.canonical, dtype=object)
    for client, part in enumerate(members):
        repeats = len(part) - len(set(name[part]))
        if repeats:
            found.append(finding("duplicates_in_client", client, repeats,
                                 f"{repeats} molecules of client {client} repeat another one of that client.",
                                 "Average the labels of repeated measurements, or keep one row of each."))
    holders = Counter(text for part in members for text in set(name[part]))
    shared = sum(count > 1 for count in holders.values())
    if shared:
        found.append(finding("duplicates_across_clients", None, shared,
                             f"{shared} molecules are held by more than one client.", NOTHING))
    train = set(name[split["train"]])
    for stage in ("val", "test"):
        leaked = sum(text in train for text in name[split[stage]])
        if leaked:
            found.append(finding(f"train_{stage}_leakage", None, leaked,
                                 f"{leaked} of {len(split[stage])} {stage} molecules are also in the training part.",
                                 "Remove the repeated rows, or use `data.init_args.split: scaffold`."))
    return found


def shared_molecules(molecules: MoleculeSet, members: Sequence[np.ndarray]) -> list[list[int]]:
    """Molecules (by canonical SMILES) that two clients both hold, K lists of K; the diagonal is 0."""
    held = [{molecules.canonical[position] for position in part} for part in members]
    return [[0 if a is b else len(a & b) for b in held] for a in held]


def label_findings(y: np.ndarray, task_names: Sequence[str], classification: bool, split: Mapping[str, np.ndarray],
                   members: Sequence[np.ndarray], client_tests: Sequence[np.ndarray]) -> list[Finding]:
    """Missing labels, tasks that a client does not have, evaluation parts in which a metric is undefined.

    Args:
        y: Labels ``(M, T)``, ``nan`` where missing.
        task_names: T names.
        classification: Whether labels are 0 / 1.
        split, members, client_tests: Positions of the server's parts, and of each client's training and test part.
    """
    found = []
    missing = int(np.isnan(y).sum())
    if missing:
        found.append(finding("missing_labels", None, missing, f"{missing} of {y.size} labels are missing: they are "
                                                              "masked in losses and metrics.", NOTHING))
    for client, part in enumerate(members):
        absent = _names(task_names, np.isnan(y[part]).all(0)) if len(part) else []
        if absent:
            found.append(finding("missing_task", client, len(absent),
                                 f"Client {client} has no label of {_listed(absent)}: it does not train these tasks.",
                                 NOTHING))
        if classification and len(part):
            single = _names(task_names, _one_class(y[part]))
            if single:
                found.append(finding("one_class", client, len(single),
                                     f"The training labels of client {client} are all of one class for "
                                     f"{_listed(single)}.", "A larger `data.init_args.alpha` or fewer clients."))
    tests: list[tuple[int | None, str, str, np.ndarray]]
    tests = [(None, stage, f"the server's {stage} part", split[stage]) for stage in ("val", "test")]
    tests += [(client, "test", f"the test part of client {client}", part) for client, part in enumerate(client_tests)]
    for owner, stage, where, part in tests:
        if not len(part):
            continue
        undefined = _names(task_names, np.isnan(y[part]).all(0) | (_one_class(y[part]) if classification else False))
        if undefined:
            found.append(finding(f"undefined_{stage}_metric", owner, len(undefined),
                                 f"In {where} the metric of {_listed(undefined)} is undefined (no label, or one "
                                 "class): left out of the mean, never 0 or 1.", "A larger part or another seed."))
    return found


def client_findings(members: Sequence[np.ndarray], batch_size: int, tv: np.ndarray, tv_iid: float) -> list[Finding]:
    """Empty and small clients, and those whose scaffolds differ from the whole by more than chance alone explains."""
    found = []
    fewer = "Use fewer clients (`data.init_args.num_clients`) or a larger `data.init_args.min_client_size`."
    for client, part in enumerate(members):
        if not len(part):
            found.append(finding("empty", client, 0, f"Client {client} has no training molecule: it takes no local "
                                                     "step and is reported as `empty`.", fewer))
        elif len(part) < batch_size:
            found.append(finding("small_client", client, len(part), f"Client {client} has {len(part)} training "
                                 f"molecules, less than a batch ({batch_size}): each step sees all of them.", fewer))
        if len(part) and tv[client] > tv_iid + 0.1:
            found.append(finding("scaffold_skew", client, len(part),
                                 f"The scaffolds of client {client} are {tv[client]:.2f} (total variation) from the "
                                 f"whole; a random split gives {tv_iid:.2f}.",
                                 "This is what `data.init_args.alpha` sets; larger is milder."))
    return found


def label_summary(y: np.ndarray, task_names: Sequence[str], classification: bool) -> dict[str, dict[str, Any]]:
    """Counts of each task's labels in one part: 0 / 1 / missing, or number, mean and deviation."""
    summary: dict[str, dict[str, Any]] = {}
    for name, column in zip(task_names, y.T, strict=True):
        known = column[~np.isnan(column)].astype(np.float64)
        entry: dict[str, Any] = {"missing": int(len(column) - len(known))}
        if classification:
            entry |= {"negative": int((known == 0).sum()), "positive": int((known == 1).sum())}
        else:
            entry |= {"known": len(known), "mean": float(known.mean()) if len(known) else None,
                      "sd": float(known.std()) if len(known) else None}
        summary[name] = entry
    return summary


def _one_class(y: np.ndarray) -> np.ndarray:
    return ((y == 0).any(0) | (y == 1).any(0)) & ~((y == 0).any(0) & (y == 1).any(0))


def _names(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [name for name, use in zip(names, np.broadcast_to(chosen, len(names)), strict=True) if use]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more tasks" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
