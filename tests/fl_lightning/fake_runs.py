"""Run folders written by hand, for tests of reports: nothing is trained."""

import json
from pathlib import Path

from fl_lightning.reporting.finished import load


def results(
    strategy="FedAvg", seed=0, glob=0.8, per_client=(0.7, 0.9), each=None, val=0.75, mode="max", metric="accuracy", **more
):
    """A results.json with what the reports read."""
    known = [v for v in per_client if v is not None]
    part = {
        "global": glob,
        "mean": sum(known) / len(known) if known else None,
        "worst": (min(known) if mode == "max" else max(known)) if known else None,
        "per_client": list(per_client),
    }
    return {
        "name": strategy.lower(), "strategy": strategy, "seed": seed, "num_clients": len(per_client), "rounds_run": 3,
        "best_round": 1, "metric": metric, "mode": mode, "val": {**part, "global": None if glob is None else val, "mean": val},
        "test": {**part, "undefined": 0, "each_on_global": each},
        "bytes": {"up": 1_000_000, "down": 2_000_000, "by_kind": {"fit": 3_000_000}}, "seconds": {"total": 2.0},
        "peak_rss_mb": 100, "failures": [], "versions": {"torch": "2"}, **more,
    }  # fmt: skip


def write_run(folder: Path, content: dict, partition=None, curve=(), config=None, matrices=None) -> Path:
    """The folder of a finished run; ``curve`` holds validation scores (global, clients) of the rounds."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(content))
    if partition is not None:
        (folder / "partition.json").write_text(json.dumps({"sha256": partition, "client_sizes": [3, 5]}))
    if curve:
        lines = [f"round,val/{content['metric']},val/clients_mean,bytes/up,bytes/down"]
        lines += [f"{i},{'' if g is None else g},{'' if c is None else c},500000,500000" for i, (g, c) in enumerate(curve)]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    if config is not None:
        (folder / "config.yaml").write_text(json.dumps(config))
    if matrices is not None:
        (folder / "matrices.json").write_text(json.dumps(matrices))
    return folder


def make(tmp_path, method, seed, setting=None, partition="p", curve=(), matrices=None, **content):
    """A run of a comparison."""
    content = results(seed=seed, **content)
    setting = setting or {}
    place = tmp_path / "_".join([*setting.values(), method, str(seed)])
    write_run(place, content, partition, curve, matrices=matrices)
    return load(place, setting, method, seed)
