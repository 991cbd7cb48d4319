"""docs/deployment.md, typed as written: three sites from nothing to a trained FLIT model. Slow: a dozen processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flower_cluster import PATIENCE, free_ports

pytest.importorskip("flwr", reason="needs the extra `fl-lightning[flower]`")
pytestmark = pytest.mark.slow
DOC = Path(__file__).resolve().parents[2] / "docs" / "deployment.md"


def wait_for(path, text):
    end = time.monotonic() + PATIENCE
    while not path.is_file() or text not in path.read_text():
        assert time.monotonic() < end, path.read_text() if path.is_file() else path
        time.sleep(0.2)


def test_three_sites_from_nothing_to_a_trained_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    port, control = free_ports(2)
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    text = DOC.read_text(encoding="utf-8").replace("127.0.0.1:8443", f"127.0.0.1:{port}")
    text = text.replace("init server --host 127.0.0.1\n", f"init server --host 127.0.0.1 --port {port} --control {control}\n")
    started = []
    try:
        for language, block in re.findall(r"```(bash|yaml|python)\n(.*?)```", text, re.DOTALL):
            if language == "yaml":
                Path("experiment.yaml").write_text(block)
            elif language == "python":
                exec(compile(block, DOC.name, "exec"), {"__name__": "deployment"})
            elif block.rstrip().endswith("&"):
                started.append(subprocess.Popen(["bash", "-c", block + "wait\n"], env=environment, start_new_session=True))
                wait_for(tmp_path / "server" / "out", "ready: sites reach")
                for site in ("basel", "leipzig", "oslo"):
                    wait_for(tmp_path / site / "out", "connected to")
            else:
                done = subprocess.run(["bash", "-ec", block], env=environment, capture_output=True, text=True)
                assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads(Path("runs/experiment/version_0/results.json").read_text())
        assert results["failures"] == [] and results["num_clients"] == 3 and results["rounds_run"] == 5
        assert all(0 < rmse < 3 for rmse in results["test"]["per_client"])  # pIC50 is 6.3 on average; untrained 6 and more
        assert results["test"]["global"] is None, "the server has no data to score on"
        lines = [json.loads(line) for line in Path("oslo/state/ledger.jsonl").read_text().splitlines()]
        told = next(line for line in lines if line["kind"] == "contact")
        assert told["values"] == ["fingerprint", "initial", "num_train_samples", "schema", "start", "statistics", "unlearnt"]
        at_server = [json.loads(line) for line in Path("runs/experiment/version_0/ledger.jsonl").read_text().splitlines()]
        own = [line for line in lines if line["kind"] not in ("contact", "statistics")]
        assert own == [line for line in at_server if line["client"] == 2], "both ends say the same of what crossed"
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
