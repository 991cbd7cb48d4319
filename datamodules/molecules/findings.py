"""What ``inspect`` tells about molecules: dropped rows, salts, missing labels, duplicates, leakage, scaffold skew."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rdkit import Chem, rdBase

from datamodules.findings import Finding, finding
from datamodules.molecules.scaffold import ACYCLIC
from datamodules.molecules.split import PARTS
from datamodules.molecules.table import MoleculeSet

NOTHING = "Nothing, if this is meant."


def table_findings(molecules: MoleculeSet, fragments: str = "all", acyclic: str = "group") -> list[Finding]:
    """What concerns the rows as such: those left out, salts, molecules without bonds, atoms unknown to the features.

    ``fragments`` and ``acyclic`` are the data module's options: what they have settled is no finding any more.
    """
    found = []
    packed, size = molecules.packed, len(molecules)
    dropped = molecules.dropped_rows
    if dropped:
        rows = ", ".join(str(drop["row"]) for drop in dropped[:10]) + (", ..." if len(dropped) > 10 else "")
        found.append(finding("invalid_rows", None, len(dropped),
                             f"{len(dropped)} rows cannot be used and were left out (rows {rows}).",
                             "Correct them in the file; the reasons are in `dropped_rows`."))
    salts = int((molecules.num_fragments > 1).sum())
    bonds = "code" in packed.edges
    if salts and (fragments == "all" or not bonds):
        found.append(finding("multi_fragment", None, salts,
                             f"{salts} of {size} molecules are salts or mixtures of several parts.",
                             "`data.init_args.fragments: largest` keeps only the largest part." if bonds else NOTHING))
    if bonds:
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
    chains = molecules.scaffold.count(ACYCLIC)
    if chains > size / 4 and acyclic == "group":
        found.append(finding("large_scaffold_group", None, chains,
                             f"{chains} of {size} molecules have no ring and form one scaffold group.",
                             "`data.init_args.acyclic: spread` makes each of them a group of its own."))
    return found


def split_findings(split: Mapping[str, np.ndarray], wanted: Sequence[int]) -> list[Finding]:
    """A part of the server's split that is far from its size: whole scaffolds are hard to share out."""
    sizes = [len(split[name]) for name in PARTS]
    off = max(abs(found - size) for found, size in zip(sizes, wanted, strict=True))
    if off <= max(1, sum(sizes) / 20) and not any(size and not found for found, size in zip(sizes, wanted, strict=True)):
        return []
    got, asked = ("/".join(map(str, numbers)) for numbers in (sizes, wanted))
    return [finding("split_sizes", None, off, f"The parts for train/val/test have {got} molecules instead of {asked}: scaffold "
                    "groups are kept whole, and the largest did not fit.",
                    "`data.init_args.acyclic: spread` splits up molecules without a ring; or `data.init_args.split: random`.")]


def duplicate_findings(molecules: MoleculeSet, split: Mapping[str, np.ndarray], clients: Sequence[Mapping[str, np.ndarray]],
                       acyclic: str = "group", classification: bool = False) -> list[Finding]:
    """Molecules that occur more than once (by canonical SMILES): within a client, in several clients, and in both the
    training and an evaluation part, where they flatter the score.

    Args:
        molecules: All of them.
        split: Positions of the server's parts.
        clients: Positions of each client's ``train``, ``val`` and ``test`` part.
        acyclic: The data module's option; with ``spread``, a split by scaffold may part equal molecules.
        classification: Whether labels are classes, of which there is no average.
    """
    found = []
    merge = "Keep one row of each." if classification else ("Average the labels of repeated measurements, or keep one row of "
                                                            "each.")
    name = np.array(molecules.canonical, dtype=object)
    members = [parts["train"] for parts in clients]
    for client, part in enumerate(members):
        repeats = len(part) - len(set(name[part]))
        if repeats:
            found.append(finding("duplicates_in_client", client, repeats,
                                 f"{repeats} molecules of client {client} repeat another one of that client.",
                                 merge))
    holders = Counter(text for part in members for text in set(name[part]))
    shared = sum(count > 1 for count in holders.values())
    if shared:
        found.append(finding("duplicates_across_clients", None, shared,
                             f"{shared} molecules are held by more than one client.", NOTHING))
    return found + _leakage(molecules, name, split, clients, acyclic)


def _leakage(molecules: MoleculeSet, name: np.ndarray, split: Mapping[str, np.ndarray],
             clients: Sequence[Mapping[str, np.ndarray]], acyclic: str) -> list[Finding]:
    """Evaluated molecules that were learnt: the server's val and test against its training part (which holds all the
    clients'), a client's own val and test against what any client trains on."""
    found = []
    remove = "Remove the repeated rows" + (", or use `data.init_args.split: scaffold`." if acyclic == "group" else ".")
    flat = without_chirality(molecules) if "code" in molecules.packed.edges else name
    train = {"name": set(name[split["train"]]), "flat": set(flat[split["train"]])}
    for stage in ("val", "test"):
        part = split[stage]
        leaked = np.array([text in train["name"] for text in name[part]], dtype=bool)
        if leaked.any():
            found.append(finding(f"train_{stage}_leakage", None, int(leaked.sum()),
                                 f"{leaked.sum()} of {len(part)} {stage} molecules are also in the training part.", remove))
        twins = int((np.array([text in train["flat"] for text in flat[part]], dtype=bool) & ~leaked).sum())
        if twins:
            found.append(finding(f"train_{stage}_stereoisomers", None, twins,
                                 f"{twins} of {len(part)} {stage} molecules differ from a training molecule in chirality "
                                 "alone, which no feature tells: to the model they are equal.",
                                 remove.replace("repeated rows", "rows of all isomers but one")))
    chosen_by = set(name[split["val"]])
    both = sum(text in chosen_by for text in name[split["test"]])
    if both:
        found.append(finding("val_test_leakage", None, both, f"{both} of {len(split['test'])} test molecules are also in the "
                             "validation part, which chooses the best round.", "Remove the repeated rows."))
    learnt = {text for parts in clients for text in name[parts["train"]]}
    for client, parts in enumerate(clients):
        own = set(name[parts["train"]])
        for stage in ("val", "test"):
            leaked_here = [text for text in name[parts[stage]] if text in learnt]
            if leaked_here:
                found.append(finding(f"train_{stage}_leakage", client, len(leaked_here),
                                     f"{len(leaked_here)} of {len(parts[stage])} {stage} molecules of client {client} are also "
                                     f"in a client's training part ({sum(text in own for text in leaked_here)} in its own).",
                                     "Remove the repeated rows."))
    return found


def without_chirality(molecules: MoleculeSet) -> np.ndarray:
    """Canonical SMILES without tetrahedral stereo marks, text ``(M,)``: equal where all bond features and atom features
    are. E / Z marks stay, since bonds have them as features."""
    texts = []
    with rdBase.BlockLogs():  # RDKit has said what it has to say when the rows were read
        for text in molecules.canonical:
            molecule = Chem.MolFromSmiles(text) if "@" in text else None
            if molecule is not None:
                for atom in molecule.GetAtoms():
                    atom.SetChiralTag(Chem.ChiralType.CHI_UNSPECIFIED)
                text = Chem.MolToSmiles(molecule)
            texts.append(text)
    return np.array(texts, dtype=object)


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
        split: Positions of the server's parts.
        members: Positions of each client's training part.
        client_tests: Positions of each client's test part.
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
                                 f"Client {client} has no label of {_listed(absent)}: it does not train these tasks, "
                                 "and sends back their outputs' weights as it received them.",
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
            found.append(finding("empty", client, 0, f"Client {client} has no training molecule with a label: it takes "
                                                     "no local step and is reported as `empty`.", fewer))
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
