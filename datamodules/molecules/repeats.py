"""Molecules that occur more than once, by canonical SMILES: at a client, at several, and where one is learnt and scored.

Whose labels do not agree is found by :func:`~datamodules.molecules.contradictions.contradiction_findings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rdkit import Chem, rdBase

from datamodules.findings import Finding, either, finding, name_first, remark
from datamodules.molecules.scaffold import ACYCLIC
from datamodules.molecules.table import MoleculeSet

Groups = Mapping[str, Sequence[int]]  # positions of what counts as one molecule, by its name
SHOWN_ROWS = 3  # of one molecule in a message


def duplicate_findings(
    molecules: MoleculeSet,
    split: Mapping[str, np.ndarray],
    clients: Sequence[Mapping[str, np.ndarray]],
    acyclic: str = "group",
    classification: bool = False,
) -> list[Finding]:
    """Molecules that occur more than once: within a client, in several clients, and in both the training and an evaluation
    part, where they flatter the score.

    Args:
        molecules: All of them.
        split: Positions of the server's parts.
        clients: Positions of each client's ``train``, ``val`` and ``test`` part.
        acyclic: The data module's option; with ``spread``, a split by scaffold may part equal molecules.
        classification: Whether labels are classes, of which there is no average.
    """
    found = []
    merge = (
        "Keep one row of each." if classification else ("Average the labels of repeated measurements, or keep one row of each.")
    )
    name = np.array(molecules.canonical, dtype=object)
    members = [parts["train"] for parts in clients]
    for client, part in enumerate(members):
        groups = {text: places for text, places in _group(name, part).items() if len(places) > 1}
        repeats = sum(map(len, groups.values())) - len(groups)
        if repeats:
            message = (
                f"{repeats} {either(repeats, 'molecule', 'molecules')} of client {client} "
                f"{either(repeats, 'repeats', 'repeat')} another one of that client: {_name(molecules, groups)}."
            )
            found.append(finding("duplicates_in_client", client, repeats, message, merge, _list(molecules, groups)))
    shared = _shared(name, members)
    if shared:
        held = either(len(shared), "molecule is", "molecules are")
        found.append(
            remark(
                "duplicates_across_clients",
                None,
                len(shared),
                f"{len(shared)} {held} held by more than one client: {_name(molecules, shared)}.",
                rows=_list(molecules, shared),
            )
        )
    return found + _server_leakage(molecules, name, split, acyclic) + _client_leakage(molecules, name, clients)


def shared_molecules(molecules: MoleculeSet, members: Sequence[np.ndarray]) -> list[list[int]]:
    """Molecules (by canonical SMILES) that two clients both hold, K lists of K; the diagonal is 0."""
    held = [{molecules.canonical[position] for position in part} for part in members]
    return [[0 if a is b else len(a & b) for b in held] for a in held]


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


def _server_leakage(molecules: MoleculeSet, name: np.ndarray, split: Mapping[str, np.ndarray], acyclic: str) -> list[Finding]:
    """The server's val and test molecules against its training part, which holds all the clients', and test against val."""
    found = []
    rings = 2 * molecules.scaffold.count(ACYCLIC) <= len(molecules)  # else most are one scaffold, which no split parts well
    or_else = ", or use `data.init_args.split: scaffold`." if acyclic == "group" and rings else "."
    flat = without_chirality(molecules) if "code" in molecules.packed.edges else name
    train, train_flat = _group(name, split["train"]), _group(flat, split["train"])
    for stage in ("val", "test"):
        part = split[stage]
        leaked = np.array([text in train for text in name[part]], dtype=bool)
        twins = np.array([text in train_flat for text in flat[part]], dtype=bool) & ~leaked
        if leaked.any():
            groups, count = _join(name, part[leaked], train), int(leaked.sum())
            found.append(
                finding(
                    f"train_{stage}_leakage",
                    None,
                    count,
                    f"{count} of {len(part)} {stage} molecules "
                    f"{either(count, 'is', 'are')} also in the training part: {_name(molecules, groups)}.",
                    f"Remove the repeated rows{or_else}",
                    _list(molecules, groups, {stage: part}),
                )
            )
        if twins.any():
            groups, count = _join(flat, part[twins], train_flat), int(twins.sum())
            found.append(
                finding(
                    f"train_{stage}_stereoisomers",
                    None,
                    count,
                    f"{count} of {len(part)} {stage} molecules "
                    f"{either(count, 'differs', 'differ')} from a training molecule in chirality alone, which no "
                    f"feature tells: to the model they are equal: {_name(molecules, groups)}.",
                    f"Remove the rows of all isomers but one{or_else}",
                    _list(molecules, groups, {stage: part}),
                )
            )
    val, test = _group(name, split["val"]), split["test"]
    both = np.array([text in val for text in name[test]], dtype=bool)
    if both.any():
        groups, count = _join(name, test[both], val), int(both.sum())
        found.append(
            finding(
                "val_test_leakage",
                None,
                count,
                f"{count} of {len(test)} test molecules "
                f"{either(count, 'is', 'are')} also in the validation part, which chooses the best round: "
                f"{_name(molecules, groups)}.",
                "Remove the repeated rows.",
                _list(molecules, groups, {"val": split["val"], "test": test}),
            )
        )
    return found


def _client_leakage(molecules: MoleculeSet, name: np.ndarray, clients: Sequence[Mapping[str, np.ndarray]]) -> list[Finding]:
    """A client's own val and test molecules against what any client trains on."""
    found = []
    learnt = _group(name, [place for parts in clients for place in parts["train"]])
    for client, parts in enumerate(clients):
        own = set(name[parts["train"]])
        for stage in ("val", "test"):
            part = parts[stage]
            leaked = [place for place in part if name[place] in learnt]
            if leaked:
                groups = _join(name, leaked, learnt)
                found.append(
                    finding(
                        f"train_{stage}_leakage",
                        client,
                        len(leaked),
                        f"{len(leaked)} of {len(part)} {stage} molecules of client {client} "
                        f"{either(len(leaked), 'is', 'are')} also in a client's training part "
                        f"({sum(name[place] in own for place in leaked)} in its own): {_name(molecules, groups)}.",
                        "Remove the repeated rows.",
                        _list(molecules, groups, {stage: part}),
                    )
                )
    return found


def _group(name: np.ndarray, places: Iterable[int]) -> dict[str, list[int]]:
    """Positions by name, in order."""
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(name[place], []).append(int(place))
    return groups


def _join(name: np.ndarray, some: Iterable[int], others: Groups) -> dict[str, list[int]]:
    """The molecules at ``some`` positions, with the ``others`` of their names."""
    return {text: sorted({*places, *others[text]}) for text, places in _group(name, some).items()}


def _shared(name: np.ndarray, members: Sequence[np.ndarray]) -> dict[str, list[int]]:
    """Molecules that several clients hold."""
    holders: dict[str, set[int]] = {}
    for client, part in enumerate(members):
        for text in name[part]:
            holders.setdefault(text, set()).add(client)
    places = _group(name, sorted(int(place) for part in members for place in part))
    return {text: own for text, own in places.items() if len(holders[text]) > 1}


def _name(molecules: MoleculeSet, groups: Groups) -> str:
    """The first molecules with their rows, in words."""
    told = []
    for places in list(groups.values())[: SHOWN_ROWS + 1]:
        rows = ", ".join(molecules.where(place) for place in places[:SHOWN_ROWS]) + ", ..." * (len(places) > SHOWN_ROWS)
        told.append(f"{molecules.canonical[places[0]]} ({rows})")
    return name_first(told, len(groups))


def _list(molecules: MoleculeSet, groups: Groups, evaluated: Mapping[str, np.ndarray] | None = None) -> list[dict]:
    """All rows of all molecules; where some of them are evaluated, with the ``part`` that each is in."""
    part = {int(place): stage for stage, places in (evaluated or {}).items() for place in places}
    return [
        {
            **molecules.list_row(place),
            "molecule": molecules.canonical[place],
            **({} if evaluated is None else {"part": part.get(place, "train")}),
        }
        for places in groups.values()
        for place in places
    ]
