"""Every command that the README names: make targets exist, `fl-lightning` lines parse, the demo runs (on a small graph)."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fl_lightning.comparison.plan import read_plan

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [
    line.split(" #")[0].strip() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.split("\n")
]


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in SHELL if line.startswith("make ")]
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_every_command_parses():
    """``--print_config`` checks every key, value and class; in one process for all of them."""
    commands = [shlex.split(line)[1:] for line in SHELL if line.startswith("fl-lightning ") and "--help" not in line]
    own = [command for command in commands if command[0] in ("compare", "report")]
    commands = [command for command in commands if command not in own]
    assert {command[0] for command in commands} == {"inspect", "fit", "validate", "test", "predict", "canary"}
    assert [command[0] for command in own] == ["compare", "report"]
    assert read_plan(ROOT / own[0][own[0].index("--config") + 1]).cells
    script = (
        "import sys, json, contextlib, io\n"
        "from fl_lightning.cli import FederatedCLI\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "        try:\n"
        "            FederatedCLI([*command, '--print_config'])\n"
        "            raise RuntimeError(f'{command} did not print')\n"
        "        except SystemExit as stop:\n"
        "            assert stop.code in (0, None), command\n"
        "    assert 'data:' in said.getvalue(), command\n"
    )
    done = subprocess.run([sys.executable, "-c", script, json.dumps(commands)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


def run_demo(folder, *arguments):
    script = str(ROOT / "examples" / "demo.py")
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("example", ["graph", pytest.param("molecules", marks=pytest.mark.slow)])
def test_demo_prints_one_table_and_where_the_runs_are(example, tmp_path):
    small = {"num_nodes": 150, "num_features": 40} if example == "graph" else {"batch_size": 512}  # two batches
    small["num_clients"] = 2
    arguments = [f"--data.init_args.{name}={value}" for name, value in small.items()]
    work = "--trainer.max_epochs=1" if example == "graph" else "--trainer.max_steps=2"
    done = run_demo(tmp_path, example, *arguments, work)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""  # quiet where there is no terminal
    rows = [line for line in done.stdout.split("\n") if re.match(r"(local|federated|central) \(", line)]
    assert [row.split()[0] for row in rows] == ["local", "federated", "central"]
    folders = re.findall(r"^  \w+ \(.*\): (.+)$", done.stdout, re.MULTILINE)
    assert len(folders) == 3
    results = [json.loads((tmp_path / folder / "results.json").read_text()) for folder in folders]
    assert [r["strategy"] for r in results] == ["LocalOnly", "FedAvg", "Central"]
    assert {r["metric"] for r in results} == {"accuracy" if example == "graph" else "rmse"}
    assert f"{results[1]['test']['global']:.4f}" in rows[1]
    each = results[0]["test"]["each_on_global"]  # local: the mean of the clients' models on the server's data
    assert f"{sum(each) / len(each):.4f}" in rows[0]


def test_demo_asks_which_example_options_are_for(tmp_path):
    done = run_demo(tmp_path, "--trainer.max_epochs=1")
    assert done.returncode != 0 and "say first which example" in done.stderr and "graph or molecules" in done.stderr


def test_results_table_in_the_readme_is_the_demos_form():
    from examples.demo import EXAMPLES, JOBS

    for example in EXAMPLES.values():
        table = README.split(f"\n{example.header[0]} ")[1].split("```")[0]
        assert [name for name in JOBS if f"\n{name} " in table.split("\n\n")[0]] == list(JOBS)


def test_classes_in_the_table_of_algorithms_exist():
    import fl_lightning.strategies as strategies

    named = re.findall(r"`fl_lightning\.strategies\.(\w+)`", README)
    assert {"FedAvg", "LocalOnly"} <= set(named)
    assert all(issubclass(getattr(strategies, name), strategies.Strategy) for name in named)
