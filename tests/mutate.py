"""Would the tests notice a fault?  ``python -m tests.mutate --seed 1 --number 150`` puts small faults into the sources, one
at a time, runs the tests that mirror the file, and prints the faults that nobody noticed (survivors).

    python -m tests.mutate --list --paths fl_lightning/strategies       # the mutants of a sample, nothing is run
    python -m tests.mutate --seed 3 --number 40 --out mutants.jsonl     # goes on where the file ends
    python -m tests.mutate --at lit_models/masks.py:31                  # all mutants of a line

Nothing is changed here: each job works on a copy of the tree in a temporary folder. The libraries are imported once; each
mutant's tests run in a fork. A survivor of its mirrored tests meets the recorded bits of every algorithm before it counts.
Known to be equivalent (no test can notice them): `tests/mutants_equivalent.md`; a line there names file and mutation.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATHS = ("fl_lightning/strategies", "fl_lightning/engine", "lit_models/objectives", "lit_models/neighgen")
LAST = "tests/whole/test_recorded_bits.py"
LIBRARIES = (
    "torch", "lightning", "lightning.pytorch.cli", "torch_geometric.nn", "torch_geometric.loader", "torchmetrics", "pandas",
    "scipy.sparse", "networkx", "rdkit.Chem", "safetensors.torch", "matplotlib.pyplot", "hypothesis", "torch.utils.tensorboard",
)  # fmt: skip
# Sources whose tests have another name than ``test_<source>*.py`` beside them.
ELSEWHERE = {
    "fl_lightning/engine/client.py": ["tests/whole/test_same_bits.py", "tests/whole/test_failures.py"],
    "fl_lightning/engine/run_loops.py": ["tests/fl_lightning/engine/test_clock.py"],
    "fl_lightning/engine/scheduler_state.py": ["tests/fl_lightning/engine/test_clock.py"],
    "fl_lightning/engine/diagnostics.py": ["tests/fl_lightning/reporting/test_pictures.py"],
    "fl_lightning/engine/checkpoint.py": ["tests/whole/test_resume.py"],
    "fl_lightning/engine/local.py": ["tests/fl_lightning/engine/test_local_trainer.py"],
    "fl_lightning/engine/lightning_fast/reused_trainer.py": [
        "tests/fl_lightning/engine/test_trainers.py", "tests/fl_lightning/engine/test_local_trainer.py",
        "tests/fl_lightning/engine/lightning_fast/test_short_runs.py",
    ],
    "fl_lightning/engine/lightning_fast/short_runs.py": [
        "tests/fl_lightning/engine/lightning_fast/test_reused_trainer.py", "tests/fl_lightning/engine/test_local_trainer.py",
    ],
    "fl_lightning/engine/lightning_fast/__init__.py": [
        "tests/fl_lightning/engine/test_trainers.py", "tests/fl_lightning/engine/lightning_fast/test_versions.py",
    ],
    "fl_lightning/engine/trainer_args.py": ["tests/fl_lightning/engine/test_local_trainer.py"],
    "fl_lightning/engine/remote.py": ["tests/fl_lightning/test_schema.py", "tests/fl_lightning/engine/test_replies.py"],
    "fl_lightning/engine/transport.py": ["tests/fl_lightning/engine/test_transport.py", "tests/whole/test_same_bits.py"],
    "fl_lightning/engine/worker_processes.py": ["tests/whole/test_same_bits.py", "tests/whole/test_failures.py"],
    "fl_lightning/strategies/fedsage_client.py": ["tests/fl_lightning/strategies/test_fedsage_plus.py"],
    "fl_lightning/strategies/local_only.py": ["tests/whole/test_oracles.py"],
    "fl_lightning/strategies/mixtures.py": [
        "tests/fl_lightning/strategies/test_fedpub_equations.py", "tests/fl_lightning/strategies/test_fedpub.py",
    ],
    "lit_models/neighgen/module.py": ["tests/lit_models/neighgen/test_exchange.py"],
    "lit_models/objectives/base.py": ["tests/lit_models/objectives/test_erm.py"],
    "lit_models/objectives/support/received.py": ["tests/lit_models/objectives/test_flit.py"],
    "lit_models/objectives/erm.py": ["tests/lit_models/test_base.py"],
}  # fmt: skip

COMPARE = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
           ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Pow: "*", ast.FloorDiv: "/", ast.Mod: "*"}
SWAPPED = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "sum": "mean", "mean": "sum", "argmin": "argmax",
           "argmax": "argmin", "any": "all", "all": "any"}  # fmt: skip
DROPPED = ("detach", "clone", "clamp", "abs", "square", "relu", "copy", "nonzero", "t")


class Mutant(NamedTuple):
    """One fault: the text between two byte offsets of a file becomes another."""

    path: str
    line: int
    start: int
    end: int
    text: str
    what: str
    where: str = ""
    """The line's text, where ``what`` alone (``1 -> 2``) would be many places."""

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line} {self.what}{self.where}"


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    data, lines = source.encode(), source.splitlines()
    starts = [0]
    for row in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found: list[Mutant] = []

    def span(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def original(node: ast.AST) -> str:
        start, end = span(node)
        return data[start:end].decode()

    def operand(node: ast.AST) -> str:
        """Its text, with the parentheses that do not belong to the node."""
        simple = ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript | ast.List | ast.Tuple | ast.Dict | ast.Set
        return original(node) if isinstance(node, simple) else f"({original(node)})"

    def add(node: ast.AST, text: str, what: str) -> None:
        start, end = span(node)
        if data[start:end].decode() != text:
            shown = " ".join(original(node).split())
            where = f" in {lines[node.lineno - 1].strip()[:60]}" if len(shown) < 20 else ""
            found.append(Mutant(path, node.lineno, start, end, text, f"{what}: {shown[:60]} -> {text[:60]}", where))

    for node in _interesting(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            add(node, f"({operand(node.left)} {COMPARE[type(node.ops[0])]} {operand(node.comparators[0])})", "comparison")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
            add(node, f"({operand(node.left)} {ARITHMETIC[type(node.op)]} {operand(node.right)})", "arithmetic")
        elif isinstance(node, ast.BoolOp):
            for index in range(len(node.values)):
                rest = [operand(v) for i, v in enumerate(node.values) if i != index]
                joint = " and " if isinstance(node.op, ast.And) else " or "
                add(node, "(" + joint.join(rest) + ")", "drop an operand")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            add(node, f"({original(node.operand)})", "drop a sign")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            add(node, str(not node.value), "constant")
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            add(node, str({0: 1, 1: 2}.get(node.value, node.value * 2)), "constant")
        elif isinstance(node, ast.If | ast.IfExp):
            for value in ("True", "False"):
                add(node.test, value, "condition")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            add(node, "pass", "drop a statement")
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            add(node, f"{original(node.target)} {ARITHMETIC[type(node.op)]}= {operand(node.value)}", "arithmetic")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED:
            add(node, operand(node.func.value), "drop a call")
        elif isinstance(node, ast.Name | ast.Attribute) and getattr(node, "id", getattr(node, "attr", "")) in SWAPPED:
            name = node.id if isinstance(node, ast.Name) else node.attr
            add(node, original(node)[: -len(name)] + SWAPPED[name], "swap")
    return sorted(set(found), key=lambda m: (m.start, m.text))


def _interesting(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that do something: no annotations, messages, docstrings, decorators, names of what is exported or ``strict=``."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of `zip`: what is zipped has one length
            continue
        yield node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            todo.extend(x for x in (value if isinstance(value, list) else [value]) if isinstance(x, ast.AST))


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", None), str) for x in (node.left, node.right))


def files_that_test(path: str, root: Path = ROOT) -> list[str]:
    """The test files that mirror a source file."""
    source = Path(path)
    folder = root / "tests" / source.parent
    stem = source.stem.removeprefix("_")
    if stem == "__init__":
        stem = source.parent.name
        folder = folder.parent
    own = sorted(str(p.relative_to(root)) for p in folder.glob(f"test_{stem}*.py")) if folder.is_dir() else []
    return list(dict.fromkeys([*own, *(p for p in ELSEWHERE.get(path, []) if (root / p).is_file())]))


def sources(paths: list[str]) -> list[str]:
    """Python files of the given files, folders and patterns, relative to the project."""
    found: set[Path] = set()
    for pattern in paths:
        for path in ROOT.glob(pattern):
            found |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return sorted(str(p.relative_to(ROOT)) for p in found)


# ---- running ----------------------------------------------------------------------------------------------------------


def run_tests(tree: Path, files: list[str], seconds: float) -> str:
    """Run test files of a tree in a fork; ``passed``, ``failed`` or ``timeout``."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[:] = [str(tree), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        import pytest

        code = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header", *files])
        os._exit(int(code))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if status == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def work(todo: list[Mutant], out: Path) -> None:
    """Try mutants on a copy of the tree, and append what became of each to ``out``."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
        for name in files.stdout.split("\n"):
            if name and (ROOT / name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        if (ROOT.parent / "shared").is_dir():
            Path(folder, "shared").symlink_to(ROOT.parent / "shared")
        limits: dict[str, float] = {}
        for mutant in todo:
            own = files_that_test(mutant.path)
            for key, tests in (("own", own), ("last", [LAST])):
                key = mutant.path if key == "own" else key
                if tests and key not in limits:
                    begin = time.monotonic()
                    if run_tests(tree, tests, 900) != "passed":
                        raise SystemExit(f"The tests of {key} fail without any mutation: {' '.join(tests)}")
                    limits[key] = 10 + 4 * (time.monotonic() - begin)
            begin, target = time.monotonic(), tree / mutant.path
            kept = target.read_bytes()
            target.write_bytes(kept[: mutant.start] + mutant.text.encode() + kept[mutant.end :])
            result = run_tests(tree, own, limits[mutant.path]) if own else "passed"
            if result == "passed":
                result = run_tests(tree, [LAST], limits["last"])
            target.write_bytes(kept)
            line = {"mutant": mutant.key, "result": result, "seconds": round(time.monotonic() - begin, 1)}
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def equivalent() -> set[str]:
    """Keys (without line numbers) of the mutants that are known to change nothing."""
    path = ROOT / "tests" / "mutants_equivalent.md"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {line.split("`")[1] for line in lines if line.startswith("- `")}


def without_line(key: str) -> str:
    place, what = key.split(" ", 1)
    return f"{place.rsplit(':', 1)[0]} {what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--number", type=int, default=150, help="mutants of the sample")
    parser.add_argument("--paths", nargs="+", default=list(PATHS), help="files, folders or patterns")
    parser.add_argument("--at", help="FILE:LINE: all mutants of one line, instead of a sample")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="at the same time, each on a copy of the tree")
    parser.add_argument("--out", type=Path, help="JSON lines to write and to go on from")
    args = parser.parse_args()
    if args.at:
        path, line = args.at.rsplit(":", 1)
        sample = [m for m in mutants(path, (ROOT / path).read_text()) if m.line == int(line)]
    else:
        known = equivalent()
        every = [m for path in sources(args.paths) for m in mutants(path, (ROOT / path).read_text())]
        every = [m for m in every if without_line(m.key) not in known]
        sample = random.Random(args.seed).sample(every, min(args.number, len(every)))
    if args.list:
        sys.stdout.writelines(f"{m.key}\n" for m in sorted(sample))
        return 0
    out = args.out or Path(tempfile.mkdtemp(prefix="mutants-"), "mutants.jsonl")
    done = {json.loads(line)["mutant"] for line in out.read_text().splitlines()} if out.is_file() else set()
    todo = sorted(m for m in sample if m.key not in done)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    for library in LIBRARIES:
        __import__(library)
    jobs = []
    for job in range(args.jobs):
        child = os.fork()
        if child == 0:
            try:
                work(todo[job :: args.jobs], out)
            except SystemExit as stop:
                sys.stderr.write(f"{stop}\n")
                os._exit(1)
            os._exit(0)
        jobs.append(child)
    failed = [job for job in jobs if os.waitpid(job, 0)[1]]
    names = {m.key for m in sample}
    results = [r for r in map(json.loads, out.read_text().splitlines()) if r["mutant"] in names] if out.is_file() else []
    survivors = sorted(r["mutant"] for r in results if r["result"] == "passed")
    sys.stdout.writelines(f"survived  {key}\n" for key in survivors)
    noticed = len(results) - len(survivors)
    sys.stdout.write(f"{noticed} of {len(results)} noticed ({noticed / max(len(results), 1):.1%}); {out}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
