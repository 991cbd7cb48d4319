"""Several devices inside a client's fit: every rank runs the same rounds, only rank 0 writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ddp_script
import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What ``{devices: [rank 0, rank 1]}`` of one and of two processes say."""
    roots = {devices: tmp_path_factory.mktemp(f"devices{devices}") for devices in (1, 2)}
    env = {k: v for k, v in os.environ.items() if k not in ("PL_GLOBAL_SEED", "LOCAL_RANK", "NODE_RANK")}
    env |= {"PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE.parents[1]))), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "ddp_script.py"), str(roots[2]), "2"]
    process = subprocess.Popen(command, env=env, cwd=roots[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ddp_script.main(roots[1], 1)
    try:
        output = process.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0]
    assert process.returncode == 0, output
    return {
        devices: (root, [json.loads((root / f"rank_{r}.json").read_text()) for r in range(devices)])
        for devices, root in roots.items()
    }


def test_two_processes_give_the_result_of_one(ranks):
    _, (single,) = ranks[1]
    _, both = ranks[2]
    for rank in both:
        assert rank["weight"][0] == pytest.approx(single["weight"][0], abs=1e-6)
    for stage in ("val", "test"):
        for key in ("global", "mean", "worst"):
            assert both[0]["results"][stage][key] == pytest.approx(single["results"][stage][key], abs=1e-5)
    assert both[0]["results"]["failures"] == []


def test_files_are_written_once_and_by_rank_zero_only(ranks):
    root, (first, second) = ranks[2]
    assert second["run_dir"] is None and Path(first["run_dir"]) == root / "ddp" / "version_0"
    assert [p.name for p in (root / "ddp").iterdir()] == ["version_0"]
    assert len(list((root / "ddp").rglob("events*"))) == 1
    assert {p.name for p in root.iterdir()} == {"ddp", "rank_0.json", "rank_1.json"}
    assert first["results"]["bytes"]["down"] == ranks[1][1][0]["results"]["bytes"]["down"]
    assert {n: r["best_round"] for n, r in (("first", first["results"]), ("second", second["results"]))} == {
        "first": ranks[1][1][0]["results"]["best_round"],
        "second": ranks[1][1][0]["results"]["best_round"],
    }
