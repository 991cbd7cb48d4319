"""Findings about a graph in tables: rows and links that cannot be used, guesses about features, labels unlike the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from datamodules.findings import Finding, either, finding, remark, tell_if
from datamodules.tables.features import NodeFeatures
from datamodules.tables.graph_spec import GraphSpec
from datamodules.tables.graph_tables import GraphTables
from datamodules.tables.measured import Measured
from datamodules.tables.names import is_number, quote, quote_all
from datamodules.tables.odd_values import find_odd_values
from datamodules.tables.sites_apart import find_sites_apart

FEW = 0.1


def find_in_tables(tables: GraphTables, spec: GraphSpec, whole: Sequence[int]) -> list[Finding]:
    """What concerns the files as such.

    Args:
        tables: What was read.
        spec: How it was read.
        whole: Number of nodes of each class that are trained and scored on, C.
    """
    labelled, classes, alone = sum(whole), len(tables.class_names), sum(map(bool, whole)) == 1
    repeated = tables.found_links.repeated_ids if spec.clients == "folder" else 0
    nobody = int((tables.owner == -1).sum())
    return [
        *_find_bad_rows(tables),
        *tell_if("many_classes", classes if 4 < labelled < 2 * classes else 0,
                 f"{labelled} labelled nodes have {classes} different labels.",
                 "Is `data.init_args.label_column` right? Measurements must be put into classes first."),
        *tell_if("constant_labels", labelled if alone else 0,
                 f"All {labelled} labelled nodes have the class {quote(tables.class_names[whole.index(max(whole))])}: there is "
                 "nothing to learn.", "Is `data.init_args.label_column` right? Otherwise correct the file."),
        *_find_guesses(tables.features, spec.columns.label),
        *tables.odd_labels,
        *_find_clients_without_nodes(tables),
        *_find_unread_links(tables.without_links, spec.edges),
        *_find_unusable_links(tables),
        *_find_odd_links(tables),
        *tell_if("shared_ids", repeated, f"{repeated} {either(repeated, 'id occurs', 'ids occur')} at several clients: each "
                 "client's node is its own, and links between clients cannot name them.", "Make ids unique, for example by the "
                 "client's name in front."),
        *tell_if("no_client", nobody, f"{nobody} {either(nobody, 'node belongs', 'nodes belong')} to no client: in the global "
                 "graph only."),
    ]  # fmt: skip


def find_in_features(
    tables: GraphTables, columns: Iterable[Measured], node_rows: Tensor, clients: Sequence[str]
) -> list[Finding]:
    """Features that are no measurements, or that a client writes otherwise than the others.

    Args:
        tables: What was read.
        columns: The features, N values each.
        node_rows: The row of each of the N nodes in the tables, int64 ``(N,)``.
        clients: K names; none where a partitioner makes the clients.
    """
    columns, rows = list(columns), node_rows.tolist()
    owner = np.full(len(rows), -1)
    if clients:
        owner = tables.spread_over_rows(tables.owner, -1)[node_rows].numpy()
    odd = find_odd_values(columns, owner, lambda node: {"row": rows[node], **tables.origin(rows[node])})
    return odd + find_sites_apart(columns, owner, clients)


def find_missing_classes(
    clients: Sequence[str], classes: Sequence[str], labels: Sequence[Sequence[int]], whole: Sequence[int]
) -> list[Finding]:
    """Clients without a node of a class that occurs elsewhere.

    Args:
        clients: K names.
        classes: C names.
        labels: Number of nodes of each class at each client, K lists of C.
        whole: The same in the whole graph.
    """
    found = []
    for client, own in enumerate(labels):
        absent = [name for name, here, anywhere in zip(classes, own, whole, strict=True) if anywhere and not here]
        if absent:
            found.append(remark("missing_classes", client, len(absent), f"Client {clients[client]!r} has no "
                                f"node of {len(absent)} of {len(classes)} classes "
                                f"({', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''}).",
                                ": the model has all classes everywhere."))  # fmt: skip
    return found


def _find_bad_rows(tables: GraphTables) -> list[Finding]:
    bad = tables.bad_rows
    some = ", ".join(f"{d['row']} ({d['reason']})" for d in bad[:5]) + (", ..." if len(bad) > 5 else "")
    return tell_if("invalid_rows", len(bad), f"{len(bad)} {either(len(bad), 'row', 'rows')} of nodes cannot be used: "
                   f"{either(len(bad), 'row', 'rows')} {some}.",
                   "Correct them in the file; all are in `dropped_rows`. A column with many blanks is better left out of "
                   "`data.init_args.features`.")  # fmt: skip


def _find_clients_without_nodes(tables: GraphTables) -> list[Finding]:
    gone = tables.lost_clients
    return tell_if("client_without_nodes", len(gone), f"{quote_all(gone)}: no usable row, and so no client of the federation.",
                   "Correct their rows: all are in `dropped_rows`. A node that two clients hold needs an id of its own at "
                   "each, or a folder per client.")  # fmt: skip


def _find_unread_links(without: Mapping[str, Sequence[str]], edges: str) -> list[Finding]:
    """Clients without a table of links in whose folders there is another file, which may be one."""
    asked = {client: names for client, names in without.items() if names}
    there = list(dict.fromkeys(name for names in asked.values() for name in names))
    return tell_if(
        "unread_links",
        len(asked),
        f"{quote_all(list(asked))}: no links are read, since there is no `{edges}`, but there is {quote_all(there)}.",
        f"If that has the links: `data.init_args.edges: {''.join(there[:1])}`.",
    )


def explain_no_edges(
    findings: Sequence[Finding], clients: Sequence[str], without: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """The findings; where a client has no edge because no table of links was read, with the remedy for that."""
    return [{**f, "remedy": "A file beside its nodes is not read: see `unread_links`, and name it in `data.init_args.edges`."}
            if f["kind"] == "no_edges" and without.get(clients[f["client"]]) else f for f in findings]  # fmt: skip


def _find_unusable_links(tables: GraphTables) -> list[Finding]:
    """Links that were left out because of an end that is no node."""
    links = tables.found_links.links
    unknown, bad, dropped = links.num_unknown, links.num_bad, links.of_dropped
    return [
        *tell_if("unknown_ids", unknown, f"{unknown} of {links.lines} links {either(unknown, 'names', 'name')} an id that no "
                 f"node has and {either(unknown, 'was', 'were')} left out: {'; '.join(links.unknown)}.",
                 "Add these nodes, or correct the links."),
        *tell_if("invalid_links", bad, f"{bad} of {links.lines} lines {either(bad, 'is', 'are')} no link: "
                 f"{'; '.join(links.bad)}.", "Correct them in the file."),
        *tell_if("links_of_dropped_nodes", dropped, f"{dropped} of {links.lines} links {either(dropped, 'ends', 'end')} at a "
                 f"node whose row cannot be used, and {either(dropped, 'was', 'were')} left out.",
                 "Correct the rows of nodes."),
    ]  # fmt: skip


def _find_odd_links(tables: GraphTables) -> list[Finding]:
    """Links of a node to itself, and those that say again what an earlier one said."""
    lines, loops, repeated = tables.found_links.links.lines, tables.link_counts["self_loops"], tables.link_counts["repeated"]
    alone = tables.link_counts["only_self_loops"]
    return [
        *tell_if("self_loops", loops, f"{loops} of {lines} links {either(loops, 'goes', 'go')} from a node to itself and "
                 f"{either(loops, 'was', 'were')} left out; {alone} {either(alone, 'node has', 'nodes have')} no other."),
        *tell_if("repeated_links", repeated, f"{repeated} of {lines} links {either(repeated, 'repeats', 'repeat')} an earlier "
                 "line; each counts once."),
    ]  # fmt: skip


def _find_guesses(features: NodeFeatures, label: str | None) -> list[Finding]:
    """What guessing the features has left out, and what it has left in."""
    aside, codes, determining = features.set_aside, features.codes, features.determining
    reasons = "; ".join(f"`{name}` {reason}" for name, reason in list(aside.items())[:5])
    name_all = "Name the features in `data.init_args.features`: then nothing is guessed, and whatever is named is one."
    return [
        *tell_if("guessed_ids", len(aside), f"{quote_all(list(aside))}: no feature ({reasons}).", name_all),
        *tell_if(
            "label_in_features",
            len(codes),
            f"{quote_all(list(codes))}: no feature, since it is {label!r} in other words ({_tell_how(codes)}).",
            name_all,
        ),
        *tell_if(
            "feature_determines_label",
            len(determining),
            f"{quote_all(list(determining))}: a feature that determines {label!r} by itself ({_tell_how(determining)}). Would "
            "a new node have it?",
            "Name the features in `data.init_args.features`, without it if it is known only once the class is.",
        ),
    ]


def _tell_how(columns: Mapping[str, str]) -> str:
    """How well columns tell the class: in one word if all do it alike."""
    if len(set(columns.values())) == 1:
        return next(iter(columns.values()))
    return "; ".join(f"`{name}`: {how}" for name, how in list(columns.items())[:5])


def find_odd_labels(labels: Sequence[str], where: Callable[[int], str], column: str) -> list[Finding]:
    """Labels unlike the others: a few numbers among names, a few names among numbers, a class with a single node.

    Args:
        labels: N classes, ``""`` where not labelled.
        where: Where a node, by its place among the N, is in the tables, in words.
        column: Name of the column of labels.
    """
    places = [place for place, label in enumerate(labels) if label]
    numbers = [place for place in places if is_number(labels[place])]
    names = [place for place in places if not is_number(labels[place])]
    few, kind = (numbers, "numbers") if len(numbers) < len(names) else (names, "names")
    found = []
    if 0 < len(few) <= FEW * len(places):
        others = "names" if kind == "numbers" else "numbers"
        found.append(finding("odd_labels", None, len(few), f"{len(few)} of {len(places)} labels in {column!r} "
                             f"{either(len(few), f'is a {kind[:-1]}', f'are {kind}')}, the "
                             f"others {others}: {_examples(few, labels, where)}.", "Correct them, or nothing if they are "
                             "classes; `data.init_args.classes` lists what may occur."))  # fmt: skip
    count = Counter(labels[place] for place in places)
    told = set(few)
    single = [place for place in places if count[labels[place]] == 1 and place not in told]
    if single and 2 * len(count) <= len(places):  # with more classes it is `many_classes`
        found.append(finding("rare_classes", None, len(single), f"{len(single)} of {len(count)} classes "
                             f"{either(len(single), 'has', 'have')} a single one of {len(places)} labelled nodes, which cannot "
                             f"be both trained and tested on: {_examples(single, labels, where)}.", "Correct a slip of the "
                             "pen, label more nodes of it, or leave this label blank."))  # fmt: skip
    return found


def _examples(places: Sequence[int], labels: Sequence[str], where: Callable[[int], str], most: int = 5) -> str:
    some = ", ".join(f"{quote(labels[place])} in {where(place)}" for place in places[:most])
    return some + (", ..." if len(places) > most else "")
