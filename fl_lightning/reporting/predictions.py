"""predictions.csv: one row per sample, with its original id, client, prediction and outputs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

ID_NAMES = ("node_id", "sample_id", "id")


def write_predictions(path: Path, found: Mapping[int | None, Sequence[Mapping[str, Tensor]]], datamodule: Any) -> Path:
    """Write predictions sorted by (id, client).

    Columns: ``id`` (the original one if the data module has ``original_ids``, else the number ``predict_step`` gave, else the
    position), ``client``, ``prediction`` (the most probable class, if there are probabilities) and one column per output.

    Args:
        path: Target file.
        found: Batches of named tensors by client; ``None`` is the server's data, where a node's client is looked up.
        datamodule: The data module, for names of ids and clients.
    """
    owners = _owners(datamodule)
    names = getattr(datamodule, "original_ids", None)
    rows: list[dict[str, Any]] = []
    for client, batches in found.items():
        position = 0
        for batch in batches:
            id_name = next((n for n in ID_NAMES if n in batch), None)
            size = len(next(iter(batch.values())))
            ids = batch[id_name].tolist() if id_name else list(range(position, position + size))
            position += size
            outputs = {n: t.detach().cpu().reshape(size, -1) for n, t in batch.items() if n != id_name}
            for i, sample in enumerate(ids):
                row = {
                    "id": sample if names is None else names[sample],
                    "client": owners.get(sample, "") if client is None else client,
                }
                if "probabilities" in outputs:
                    row["prediction"] = int(outputs["probabilities"][i].argmax())
                for name, values in outputs.items():
                    short = "probability" if name == "probabilities" else name
                    row.update({f"{short}_{j}": f"{float(v):.6g}" for j, v in enumerate(values[i])})
                rows.append(row)
    if names is None:
        rows.sort(key=lambda r: (r["id"], str(r["client"])))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["id", "client"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _owners(datamodule: Any) -> dict[int, str]:
    """Which client holds a sample of the server's data; several (overlapping) are joined by a space."""
    record = datamodule.partition_record() if hasattr(datamodule, "partition_record") else {}
    owners: dict[int, str] = {}
    for client, members in enumerate(record.get("membership", [])):
        for sample in members:
            owners[sample] = f"{owners[sample]} {client}" if sample in owners else str(client)
    return owners
