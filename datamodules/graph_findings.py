"""Findings about a partitioned graph: what will hurt, in the whole and at each client."""

import torch
from torch_geometric.data import Data

from datamodules.findings import Finding, either, finding, remark
from datamodules.graph_statistics import isolated_nodes
from datamodules.sparse import empty_rows


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
        found.append(finding("no_edges", client, nodes, message, fewer + " `louvain` and `metis` keep neighbours together."))
    elif isolated:
        message = (
            f"{isolated} of {nodes} nodes of client {client} {either(isolated, 'has', 'have')} no neighbour there: features "
            "alone tell the class."
        )
        remedy = (
            "`data.init_args.partition: louvain` or `metis` keeps neighbours together; "
            "`data.init_args.largest_component: true` drops what is apart."
        )
        found.append(finding("isolated_nodes", client, isolated, message, remedy))
    unlabeled = int((graph.y < 0).sum())
    if unlabeled:
        has = either(unlabeled, "has no label: it passes messages and is", "have no label: they pass messages and are")
        message = f"{unlabeled} of {nodes} nodes of client {client} {has} in no split."
        found.append(remark("unlabeled_nodes", client, unlabeled, message, "; otherwise fill in the labels."))
    return found


def graph_findings(graph: Data, lost: int, note: str) -> list[Finding]:
    """What concerns the whole graph: lost edges, nodes without features, a partitioner that had to be replaced."""
    found = []
    edges = graph.edge_index.size(1) // 2
    if lost:
        message = (
            f"{lost} of {edges} edges ({lost / edges:.1%}) {either(lost, 'joins', 'join')} nodes of different clients and "
            f"{either(lost, 'is', 'are')} lost to training."
        )
        remedy = "Fewer clients or `data.init_args.partition: metis` lose fewer; FedSage+ generates the missing neighbours."
        found.append(finding("lost_edges", None, lost, message, remedy))
    bare = empty_rows(graph.x)
    if bare:
        message = f"{bare} of {int(graph.num_nodes)} nodes {either(bare, 'has', 'have')} no features at all (all zero)."
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
        more = " (`partition.json` has the result); else another `data.init_args.partition`."
        found.append(remark("partition_note", None, 1, note, more))
    return found
