"""predictions.csv: one row per sample in the original order, with its id, client, model and outputs; what was left out of
the data is there, too, with the reason."""

from __future__ import annotations

import csv
import filecmp
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

ID_NAMES = ("node_id", "sample_id", "id")
UNHELD = "held by no client, and there is no global model"
SERVERS = "validates or tests at the server (`data.init_args.fractions`), and there is no global model"


def write_predictions(path: Path, found: Mapping[int | None, Sequence[Mapping[str, Tensor]]], datamodule: Any) -> Path:
    """Write predictions sorted by the samples' original order, then by client.

    Columns: ``id`` (the original one if the data module has ``original_ids``, else the number ``predict_step`` gave, else the
    position); ``client`` that holds the sample; ``model`` that predicts it (``global``, or whose own it is); ``prediction``
    (the most probable class by name, if there are probabilities); one column per output: ``probability_<class>``,
    ``prediction_<task>`` in the label's unit, ``probability_<task>``, or as ``predict_step`` named it; and ``reason``, why
    there is none.

    Args:
        path: Target file.
        found: Batches of named tensors by client; ``None`` is the server's data, where a sample's client is looked up.
        datamodule: The data module, for names of ids, clients, classes and tasks, and for rows that were left out; if it has
            ``predicted_rows``, for rows that are not its own.

    Raises:
        ValueError: If there is no row at all.
    """
    record = datamodule.partition_record() if hasattr(datamodule, "partition_record") else {}
    clients = record.get("client_names") or []
    asked = getattr(datamodule, "predicted_rows", None)
    owners = _owners(record, clients, getattr(datamodule, "row_clients", ())) if asked is None else {}
    originals = getattr(datamodule, "original_ids", None) if asked is None else asked.ids
    dropped = getattr(datamodule, "dropped_rows", []) if asked is None else asked.dropped
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for client, batches in found.items():
        position = 0
        for batch in batches:
            id_name = next((n for n in ID_NAMES if n in batch), None)
            size = len(next(iter(batch.values())))
            samples = batch[id_name].tolist() if id_name else list(range(position, position + size))
            position += size
            outputs = {n: t.detach().cpu().unsqueeze(-1).flatten(1) for n, t in batch.items() if n != id_name}
            names = {n: _columns(n, t.size(1), datamodule) for n, t in outputs.items()}
            for i, sample in enumerate(samples):
                row = {"id": _id(sample, originals), "client": owners.get(sample, "")}
                row["model"] = "global"
                if client is not None:
                    row["model"] = f"client {_client(client, clients)}"
                    row["client"] = _client(client, clients) if asked is None else ""
                if "probabilities" in outputs:
                    best = int(outputs["probabilities"][i].argmax())
                    row["prediction"] = names["probabilities"][best].removeprefix("probability_")
                for name, values in outputs.items():
                    row.update({n: f"{float(v):.6g}" for n, v in zip(names[name], values[i], strict=True)})
                rows.append((sample, -1 if client is None else client, row))
    header = list(dict.fromkeys(name for *_, row in rows for name in row)) or ["id", "client", "model"]
    rows += _without(dropped, {sample for sample, *_ in rows}, originals, owners)
    if not rows:
        raise ValueError("Nothing was predicted: the loaders of `predict_dataloader` have no batch. No file is written.")
    rows.sort(key=lambda entry: entry[:2])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*header, "reason"], restval="")
        writer.writeheader()
        writer.writerows(row for *_, row in rows)
    return path


def write_apart(path: Path, write: Callable[[Path], Any]) -> Path:
    """Write a file without touching one that says something else: ``predictions_new.csv``, else ``predictions_new_2.csv``, ...

    Args:
        path: The wanted name.
        write: Writes the file it is given.

    Returns:
        The file that now holds the content.
    """
    draft = path.with_name(f".writing_{path.name}")
    write(draft)
    number, target = 1, path
    while target.exists() and not filecmp.cmp(draft, target, shallow=False):
        number += 1
        target = path.with_name(f"{path.stem}_{number}{path.suffix}")
    os.replace(draft, target)
    return target


def _without(
    left_out: Sequence[Mapping[str, Any]],
    predicted: set[int],
    originals: Sequence[str] | None,
    owners: Mapping[int, str],
) -> list[tuple[int, int, dict[str, Any]]]:
    """Rows of the data that no model predicts, with the reason."""
    reasons = {row: SERVERS if owners.get(row) else UNHELD for row in range(len(originals or ()))}
    reasons |= {d["row"]: d["reason"] for d in left_out if "link" not in d}  # rows of links are no samples
    return [
        (row, -1, {"id": _id(row, originals), "client": owners.get(row, ""), "reason": reason})
        for row, reason in reasons.items()
        if row not in predicted
    ]


def _id(sample: int, originals: Sequence[str] | None) -> Any:
    return sample if originals is None else originals[sample]


def _columns(output: str, width: int, datamodule: Any) -> list[str]:
    """Names of one output's columns."""
    if output == "probabilities":
        classes = getattr(datamodule, "class_names", None) or range(width)
        return [f"probability_{name}" for name in classes]
    tasks = getattr(datamodule, "task_names", None)
    if output == "predictions" and tasks is not None and len(tasks) == width:
        classes = getattr(datamodule, "schema", {}).get("task") == "classification"
        return [f"{'probability' if classes else 'prediction'}_{task}" for task in tasks]
    return [f"{output}_{index}" for index in range(width)]


def _client(client: int, names: Sequence[str]) -> str:
    return str(names[client]) if client < len(names) else str(client)


def _owners(record: Mapping[str, Any], names: Sequence[str], rows: Sequence[str]) -> dict[int, str]:
    """Which client holds a sample of the server's data; several (overlapping) are joined by a space. ``rows`` has the
    client whose file or column says so of each row, also of those with which the server validates and tests."""
    held: dict[int, str] = {}
    for client, members in enumerate(record.get("membership", [])):
        for sample in members:
            name = _client(client, names)
            held[sample] = f"{held[sample]} {name}" if sample in held else name
    return {row: name for row, name in enumerate(rows) if name} | held
