"""What ``inspect`` tells about molecules: dropped rows, salts, missing labels, sizes of parts, scaffold skew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datamodules.findings import Finding, either, finding, remark, tell_if
from datamodules.molecules.scaffold import ACYCLIC
from datamodules.molecules.split import PARTS
from datamodules.molecules.table import MoleculeSet


def table_findings(molecules: MoleculeSet, fragments: str = "all", acyclic: str = "group") -> list[Finding]:
    """What concerns the rows as such: those left out, salts, molecules without bonds, atoms unknown to the features.

    ``fragments`` and ``acyclic`` are the data module's options: what they have settled is no finding any more.
    """
    found = []
    dropped, size, bonds = molecules.dropped_rows, len(molecules), "code" in molecules.packed.edges
    if dropped:
        rows = ", ".join(str(drop["row"]) for drop in dropped[:10]) + (", ..." if len(dropped) > 10 else "")
        found.append(
            finding(
                "invalid_rows",
                None,
                len(dropped),
                f"{len(dropped)} {either(len(dropped), 'row', 'rows')} cannot be used and "
                f"{either(len(dropped), 'was', 'were')} left out ({either(len(dropped), 'row', 'rows')} {rows}).",
                "Correct them in the file; the reasons are in `dropped_rows`.",
            )
        )
    salts = np.flatnonzero(molecules.num_fragments > 1)
    if len(salts) and (fragments == "all" or not bonds):
        are = either(len(salts), "is a salt or a mixture", "are salts or mixtures")
        message = f"{len(salts)} of {size} molecules {are} of several parts."
        listed = [molecules.list_row(int(place)) for place in salts]
        found.append(
            finding(
                "multi_fragment",
                None,
                len(salts),
                message,
                "`data.init_args.fragments: largest` keeps only the largest part.",
                listed,
            )
            if bonds
            else remark("multi_fragment", None, len(salts), message, rows=listed)
        )
    found += _find_odd_atoms(molecules) if bonds else []
    chains = molecules.scaffold.count(ACYCLIC)
    if chains > size / 4 and acyclic == "group":
        found.append(
            finding(
                "large_scaffold_group",
                None,
                chains,
                f"{chains} of {size} molecules {either(chains, 'has', 'have')} no ring and form one scaffold group.",
                "`data.init_args.acyclic: spread` makes each of them a group of its own.",
            )
        )
    return found


def _find_odd_atoms(molecules: MoleculeSet) -> list[Finding]:
    """Molecules without a bond, and those with an atom that the features do not know."""
    packed, size = molecules.packed, len(molecules)
    bare = (packed.edge_ptr.diff() == packed.num_atoms).nonzero().view(-1).tolist()
    unknown = packed.atom_table[:, :43].sum(1)[packed.nodes["atom"].long()] == 0
    holders = np.unique(np.repeat(np.arange(size), packed.num_atoms.numpy())[unknown.numpy()]).tolist()
    return [
        *tell_if(
            "no_bonds",
            len(bare),
            f"{len(bare)} of {size} molecules {either(len(bare), 'has', 'have')} no bond: atoms do not see each other there.",
            rows=[molecules.list_row(place) for place in bare],
        ),
        *tell_if(
            "unknown_atoms",
            len(holders),
            f"{len(holders)} of {size} molecules {either(len(holders), 'has', 'have')} an "
            "atom (such as `*`) whose element the features do not know: its element features are all zero.",
            rows=[molecules.list_row(place) for place in holders],
        ),
    ]


def split_findings(split: Mapping[str, np.ndarray], wanted: Sequence[int]) -> list[Finding]:
    """A part of the server's split that is far from its size: whole scaffolds are hard to share out."""
    sizes = [len(split[name]) for name in PARTS]
    off = max(abs(found - size) for found, size in zip(sizes, wanted, strict=True))
    if off <= max(1, sum(sizes) / 20) and not any(size and not found for found, size in zip(sizes, wanted, strict=True)):
        return []
    got, asked = ("/".join(map(str, numbers)) for numbers in (sizes, wanted))
    return [
        finding(
            "split_sizes",
            None,
            off,
            f"The parts for train/val/test have {got} molecules instead of {asked}: scaffold "
            "groups are kept whole, and the largest did not fit.",
            "`data.init_args.acyclic: spread` splits up molecules without a ring; or `data.init_args.split: random`.",
        )
    ]


def label_findings(
    y: np.ndarray,
    task_names: Sequence[str],
    classification: bool,
    split: Mapping[str, np.ndarray],
    members: Sequence[np.ndarray],
    client_tests: Sequence[np.ndarray],
) -> list[Finding]:
    """Missing labels, tasks that a client does not have, evaluation parts in which a metric is undefined.

    Args:
        y: Labels ``(M, T)``, ``nan`` where missing.
        task_names: T names.
        classification: Whether labels are 0 / 1.
        split: Positions of the server's parts.
        members: Positions of each client's training part.
        client_tests: Positions of each client's test part.
    """
    found = []
    missing = int(np.isnan(y).sum())
    if missing:
        are = either(missing, "is missing: it is", "are missing: they are")
        found.append(
            remark("missing_labels", None, missing, f"{missing} of {y.size} labels {are} masked in losses and metrics.")
        )
    for client, part in enumerate(members):
        absent = _names(task_names, np.isnan(y[part]).all(0)) if len(part) else []
        if absent:
            these, their = either(len(absent), "this task", "these tasks"), either(len(absent), "its", "their")
            found.append(
                remark(
                    "missing_task",
                    client,
                    len(absent),
                    f"Client {client} has no label of {_listed(absent)}: it does not train {these}, and sends back "
                    f"the weights of {their} outputs as it received them.",
                )
            )
        if classification and len(part):
            single = _names(task_names, _one_class(y[part]))
            if single:
                found.append(
                    finding(
                        "one_class",
                        client,
                        len(single),
                        f"The training labels of client {client} are all of one class for {_listed(single)}.",
                        "A larger `data.init_args.alpha` or fewer clients.",
                    )
                )
    tests: list[tuple[int | None, str, str, np.ndarray]]
    tests = [(None, stage, f"the server's {stage} part", split[stage]) for stage in ("val", "test")]
    tests += [(client, "test", f"the test part of client {client}", part) for client, part in enumerate(client_tests)]
    for owner, stage, where, part in tests:
        if not len(part):
            continue
        undefined = _names(task_names, np.isnan(y[part]).all(0) | (_one_class(y[part]) if classification else False))
        if undefined:
            found.append(
                finding(
                    f"undefined_{stage}_metric",
                    owner,
                    len(undefined),
                    f"In {where} the metric of {_listed(undefined)} is undefined (no label, or one "
                    "class): left out of the mean, never 0 or 1.",
                    "A larger part or another seed.",
                )
            )
    return found


def client_findings(members: Sequence[np.ndarray], batch_size: int, tv: np.ndarray, tv_iid: float) -> list[Finding]:
    """Empty and small clients, and those whose scaffolds differ from the whole by more than chance alone explains."""
    found = []
    fewer = "Use fewer clients (`data.init_args.num_clients`) or a larger `data.init_args.min_client_size`."
    for client, part in enumerate(members):
        if not len(part):
            found.append(
                finding(
                    "empty",
                    client,
                    0,
                    f"Client {client} has no training molecule with a label: it takes "
                    "no local step and is reported as `empty`.",
                    fewer,
                )
            )
        elif len(part) < batch_size:
            has = f"has {len(part)} training {either(len(part), 'molecule', 'molecules')}"
            found.append(
                finding(
                    "small_client",
                    client,
                    len(part),
                    f"Client {client} {has}, less than a batch ({batch_size}): each step sees all of them.",
                    fewer,
                )
            )
        if len(part) and tv[client] > tv_iid + 0.1:
            found.append(
                finding(
                    "scaffold_skew",
                    client,
                    len(part),
                    f"The scaffolds of client {client} are {tv[client]:.2f} (total variation) from the "
                    f"whole; a random split gives {tv_iid:.2f}.",
                    "This is what `data.init_args.alpha` sets; larger is milder.",
                )
            )
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
            entry |= {
                "known": len(known),
                "mean": float(known.mean()) if len(known) else None,
                "sd": float(known.std()) if len(known) else None,
            }
        summary[name] = entry
    return summary


def _one_class(y: np.ndarray) -> np.ndarray:
    return ((y == 0).any(0) | (y == 1).any(0)) & ~((y == 0).any(0) & (y == 1).any(0))


def _names(names: Sequence[str], chosen: np.ndarray) -> list[str]:
    return [name for name, use in zip(names, np.broadcast_to(chosen, len(names)), strict=True) if use]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more tasks" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
