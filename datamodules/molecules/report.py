"""What is written down of divided molecules: the record of who has which, and what ``inspect`` shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rdkit import rdBase

from datamodules.findings import Finding, finding
from datamodules.molecules import findings as found_in
from datamodules.molecules.contradictions import contradiction_findings
from datamodules.molecules.division import (
    Division,
    DivisionSpec,
    list_members,
    list_rows,
    list_unassigned,
    scaffold_distances,
)
from datamodules.molecules.repeats import duplicate_findings, shared_molecules
from datamodules.molecules.scaffold import ACYCLIC
from datamodules.molecules.split import PARTS
from datamodules.molecules.table import MoleculeSet


def record_division(molecules: MoleculeSet, division: Division, spec: DivisionSpec, acyclic: str) -> dict[str, Any]:
    """What ``partition.json`` holds: method, seed, the rows of each client with their SHA-256, the rows of the server's parts,
    and training rows that no client got (``official`` only).

    Args:
        molecules: All usable molecules.
        division: Who has which.
        spec: How they were divided, with the number of clients that there are.
        acyclic: How molecules without a ring were grouped.
    """
    membership = list_members(molecules, division.clients)
    return {
        "method": spec.partition,
        "seed": spec.seed,
        "alpha": spec.alpha,
        "num_clients": spec.num_clients,
        "client_names": division.client_names,
        "client_sizes": [len(rows) for rows in membership],
        "membership": membership,
        "sha256": hashlib.sha256(json.dumps(membership).encode()).hexdigest(),
        "lost_edges": 0,
        "unassigned": list_unassigned(molecules, division),
        "split": spec.split,
        "split_seed": spec.seed if spec.split_seed is None else spec.split_seed,
        "server": {name: sorted(list_rows(molecules, part)) for name, part in division.server.items()},
        "client_holdout": [{name: list_rows(molecules, parts[name]) for name in ("val", "test")} for parts in division.clients],
        "scaffolds": int(division.groups.max()) + 1,
        "acyclic": acyclic,
        "versions": {"rdkit": rdBase.rdkitVersion},
    }


def report_molecules(
    molecules: MoleculeSet, division: Division, spec: DivisionSpec, schema: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Sizes, labels and scaffolds per client, and findings with remedies.

    ``scaffold_tv`` is the total variation of each client's scaffolds from those of all training molecules,
    ``scaffold_tv_iid`` what a random split of as many clients gives on average.

    Args:
        molecules: All usable molecules.
        division: Who has which.
        spec: How they were divided, with the number of clients that there are.
        schema: The federation's.
        options: The data module's ``fragments``, ``acyclic`` and ``batch_size``, its ``dataset`` (name), and the ``sizes`` that
            train, val and test should have.
    """
    y, names, classes = molecules.packed.y.numpy(), molecules.task_names, schema["task"] == "classification"
    server, clients, members = division.server, division.clients, division.members
    tv, tv_iid = scaffold_distances(division, spec.num_clients, spec.seed)
    findings = found_in.table_findings(molecules, options["fragments"], options["acyclic"])
    findings += found_in.split_findings(server, options["sizes"])
    findings += _unassigned_findings(molecules, division)
    findings += found_in.client_findings(members, options["batch_size"], tv, tv_iid)
    findings += duplicate_findings(molecules, server, clients, options["acyclic"], classes)
    findings += contradiction_findings(molecules, server, clients, classes)
    findings += found_in.label_findings(y, names, classes, server, members, [parts["test"] for parts in clients])
    return {
        "dataset": options["dataset"],
        "partition": spec.partition,
        "split": spec.split,
        **schema,
        "task_names": names,
        "units": molecules.units,
        "rdkit": rdBase.rdkitVersion,
        "num_molecules": len(molecules),
        "num_clients": spec.num_clients,
        "client_names": division.client_names,
        "client_sizes": [sum(map(len, parts.values())) for parts in clients],
        "client_samples": {name: [len(parts[name]) for parts in clients] for name in PARTS},
        "samples": {name: len(part) for name, part in server.items()},
        "labels": [found_in.label_summary(y[part], names, classes) for part in members],
        "labels_whole": found_in.label_summary(y[server["train"]], names, classes),
        "num_scaffolds": int(division.groups.max()) + 1,
        "acyclic_molecules": molecules.scaffold.count(ACYCLIC),
        "scaffolds_per_client": [len(np.unique(division.groups[part])) for part in members],
        "scaffold_tv": [None if np.isnan(value) else float(value) for value in tv],
        "scaffold_tv_iid": tv_iid,
        "shared_molecules": shared_molecules(molecules, members),
        "bytes": molecules.packed.nbytes,
        "findings": findings,
        "dropped_rows": molecules.dropped_rows,
    }


def _unassigned_findings(molecules: MoleculeSet, division: Division) -> list[Finding]:
    number = len(list_unassigned(molecules, division))
    if not number:
        return []
    return [
        finding(
            "unassigned",
            None,
            number,
            f"{number} training molecules are given to no client, as in the authors' code.",
            "`data.init_args.partition: scaffold_lda` gives all of them away.",
        )
    ]
