"""What ``inspect`` shows of a partitioned graph: numbers of the whole and of each client, and findings with remedies."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_geometric.data import Data

from datamodules.graph_findings import client_findings, graph_findings
from datamodules.graph_statistics import isolated_nodes, label_counts, label_distance, num_bytes
from datamodules.partition import Partition
from datamodules.split import STAGES
from datamodules.topology import edges_between


def report_graph(
    graph: Data, clients: Sequence[Data], partition: Partition, lost: int, schema: Mapping[str, Any], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The report of a graph data module.

    Args:
        graph: The whole.
        clients: Each client's part of it.
        partition: Who holds what.
        lost: Number of edges that no client holds.
        schema: The federation's, with ``num_classes``.
        about: ``dataset`` (its name), ``split`` and ``num_clients``, as they are to be shown.
    """
    whole = label_counts(graph.y, schema["num_classes"])
    labels = [label_counts(part.y, schema["num_classes"]) for part in clients]
    findings = graph_findings(graph, lost, partition.note)
    for number, part in enumerate(clients):
        findings += client_findings(number, part)
    edges = graph.edge_index.size(1) // 2
    return {
        "dataset": about["dataset"],
        "partition": partition.method,
        "split": about["split"],
        "num_nodes": int(graph.num_nodes),
        "num_edges": edges,
        **schema,
        "isolated_nodes": isolated_nodes(graph),
        "num_clients": about["num_clients"],
        "client_sizes": [int(part.num_nodes) for part in clients],
        "client_edges": [part.edge_index.size(1) // 2 for part in clients],
        "client_samples": {stage: [int(part[f"{stage}_mask"].sum()) for part in clients] for stage in STAGES},
        "samples": {stage: int(graph[f"{stage}_mask"].sum()) for stage in STAGES},
        "labels": labels,
        "labels_whole": whole,
        "label_distance": [label_distance(counts, whole) for counts in labels],
        "lost_edges": lost,
        "lost_edges_share": lost / edges if edges else 0.0,
        "edges_between": edges_between(graph.edge_index, partition.clients, int(graph.num_nodes)),
        "bytes": sum(num_bytes(part) for part in (graph, *clients)),
        "findings": findings,
    }
