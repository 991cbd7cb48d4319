"""What ``inspect`` tells about a partitioned graph: numbers per client, and findings that will hurt, each with what
to do."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from datamodules.sparse import empty_rows

Finding = dict[str, Any]


def finding(kind: str, client: int | None, count: int, message: str, remedy: str) -> Finding:
    """One line of the report; ``client`` is ``None`` for what concerns the whole data set."""
    return {"kind": kind, "client": client, "count": count, "message": message, "remedy": remedy}


def with_remedies(findings: list[Finding], remedies: dict[str, str]) -> list[Finding]:
    """The findings with other remedies for some kinds: where clients are given, no partitioner can be told to differ."""
    return [{**found, "remedy": remedies.get(found["kind"], found["remedy"])} for found in findings]


def label_counts(y: Tensor, num_classes: int) -> list[int]:
    """Number of nodes of each class; unlabeled nodes (-1) are not counted."""
    return torch.bincount(y[y >= 0], minlength=num_classes).tolist()


def label_distance(counts: list[int], whole: list[int]) -> float | None:
    r"""Total variation :math:`\frac12 \sum_c |p_c - q_c|` between two label distributions: 0 equal, 1 disjoint;
    ``None`` if one is empty."""
    if not sum(counts) or not sum(whole):
        return None
    return sum(abs(a / sum(counts) - b / sum(whole)) for a, b in zip(counts, whole, strict=True)) / 2


def isolated_nodes(graph: Data) -> int:
    """Number of nodes without an edge."""
    return int(graph.num_nodes) - torch.unique(graph.edge_index).numel()


def client_findings(client: int, graph: Data) -> list[Finding]:
    """What is wrong with one client's subgraph. All of it is legal: training goes on, with the effect that is
    described."""
    found = []
    nodes, train = int(graph.num_nodes), int(graph.train_mask.sum())
    fewer = "Use fewer clients (`data.init_args.num_clients`) or another `data.init_args.partition`."
    if nodes == 1:
        found.append(
            finding("one_node", client, 1, f"Client {client} has a single node and no neighbour to learn from.", fewer)
        )
    if train == 0:
        message = f"Client {client} has no training node: it takes no local step and is reported as `empty`."
        found.append(finding("no_train_nodes", client, nodes, message, fewer))
    classes = torch.unique(graph.y[graph.train_mask]).numel()
    if classes == 1:
        message = f"The {train} training nodes of client {client} are all of one class: alone it learns a constant."
        found.append(finding("one_class", client, train, message, fewer))
    for stage in ("val", "test"):
        if not bool(graph[f"{stage}_mask"].any()):
            message = f"Client {client} has no {stage} node: its {stage} metric is undefined and left out of the mean."
            found.append(finding(f"no_{stage}_nodes", client, nodes, message, fewer))
    isolated = isolated_nodes(graph)
    if graph.edge_index.size(1) == 0:
        message = f"Client {client} has {nodes} nodes and no edge: its model sees features only."
        found.append(
            finding("no_edges", client, nodes, message, fewer + " `louvain` and `metis` keep neighbours together.")
        )
    elif isolated:
        message = (
            f"{isolated} of {nodes} nodes of client {client} have no neighbour there: features alone classify them."
        )
        remedy = (
            "`data.init_args.partition: louvain` or `metis` keeps neighbours together; "
            "`data.init_args.largest_component: true` drops what is apart."
        )
        found.append(finding("isolated_nodes", client, isolated, message, remedy))
    unlabeled = int((graph.y < 0).sum())
    if unlabeled:
        message = (
            f"{unlabeled} of {nodes} nodes of client {client} have no label: they pass messages and are in no split."
        )
        found.append(
            finding(
                "unlabeled_nodes",
                client,
                unlabeled,
                message,
                "Nothing, if this is meant; otherwise fill in the labels.",
            )
        )
    return found


def graph_findings(graph: Data, lost: int, note: str) -> list[Finding]:
    """What concerns the whole graph: lost edges, nodes without features, a partitioner that had to be replaced."""
    found = []
    edges = graph.edge_index.size(1) // 2
    if lost:
        message = (
            f"{lost} of {edges} edges ({lost / edges:.1%}) join nodes of different clients and are lost to training."
        )
        remedy = (
            "Fewer clients or `data.init_args.partition: metis` lose fewer; FedSage+ generates the missing neighbours."
        )
        found.append(finding("lost_edges", None, lost, message, remedy))
    bare = empty_rows(graph.x)
    if bare:
        message = f"{bare} of {int(graph.num_nodes)} nodes have no features at all (all zero)."
        found.append(
            finding(
                "no_features",
                None,
                bare,
                message,
                "They are classified by their neighbours; drop them if there are many.",
            )
        )
    if note:
        remedy = "Nothing, if this is meant (`partition.json` has the result); else another `data.init_args.partition`."
        found.append(finding("partition_note", None, 1, note, remedy))
    return found
