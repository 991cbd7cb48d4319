"""No source file and no class grows beyond what one reads at once, no two modules need each other to be imported, and who reads
a source finds its tests by its name.

An import counts wherever it is written, at the top of a file or inside of a function: a function that imports late for
the sake of time (a command without torch) is no circle, and one that does it because the other way round fails is one. Only
what stands under ``if TYPE_CHECKING`` does not count: no name of it exists at run time.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fl_lightning", "lit_models", "datamodules")
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_CLASS = 400, 250


@cache
def sources():
    """Text and syntax tree of each file."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def too_long(name, text, tree):
    """The file, and those of its classes, that have more lines than one reads at once."""
    if len(text.splitlines()) > MOST_LINES_OF_A_FILE:
        yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno >= MOST_LINES_OF_A_CLASS:
            yield f"{name} {node.name}"


def runtime_nodes(node):
    """All nodes of a syntax tree but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from runtime_nodes(other)
            continue
        yield child
        yield from runtime_nodes(child)


def imported(tree, modules):
    """Which of the modules a source imports. ``from a import b`` is an import of ``a.b`` if that is a module, else of
    ``a``, whose own file holds ``b``."""
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                found = f"{node.module}.{name.name}"
                yield from ({found} if found in modules else {node.module} & modules)


def circles(graph):
    """Groups of modules that lead to each other by imports (Tarjan's strongly connected components of more than one)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            group = {node}
            while (last := stack.pop()) != node:
                group.add(last)
            if len(group) > 1 or node in graph[node]:
                found.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def test_files_and_classes_can_be_read_at_once():
    found = {place for name, source in sources().items() for place in too_long(name, *source)}
    assert found == set()


def test_no_two_modules_need_each_other():
    module = {name: name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in sources()}
    known = set(module.values())
    graph = {module[name]: set(imported(tree, known)) for name, (_, tree) in sources().items()}
    assert circles(graph) == []


def mirrored(test, sources):
    """Does its name begin with that of a source at the same place below `tests`? `a/test_b_more.py` is for `a/b.py`."""
    name = test.stem.removeprefix("test_")
    return any(source.parent == test.parent and f"{name}_".startswith(f"{source.stem}_") for source in sources)


def test_tests_mirror_sources_or_lie_with_those_of_whole_runs():
    """At the top of `tests` lie those of the project itself (its documents, its structure)."""
    paths = [path.relative_to(ROOT) for package in (*PACKAGES, "benchmarks") for path in (ROOT / package).rglob("*.py")]
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    apart = (Path("."), Path("whole"))
    assert [str(test) for test in tests if test.parent not in apart and not mirrored(test, paths)] == []
    assert not mirrored(Path("a/test_bc.py"), [Path("a/b.py")]) and not mirrored(Path("test_b.py"), [Path("a/b.py")])
    assert mirrored(Path("a/test_b.py"), [Path("a/b.py")]) and mirrored(Path("a/test_b_more.py"), [Path("a/b.py")])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import p.a", {"p.a"}),
        ("from p import a, name", {"p.a", "p"}),
        ("from p.a import name", {"p.a"}),
        ("def f():\n    from p import a", {"p.a"}),
        ("if TYPE_CHECKING:\n    import p.a\nelse:\n    import p.b", {"p.b"}),
        ("import torch\nfrom os import path", set()),
    ],
)
def test_imports_are_found(text, wanted):
    assert set(imported(ast.parse(text), {"p", "p.a", "p.b"})) == wanted


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": {"e"}}) == [["b", "c"], ["e"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_long_files_and_classes_are_found():
    def found(text):
        return list(too_long("f.py", text, ast.parse(text)))

    text = "class A:\n" + "    x = 1\n" * 249
    assert found(text) == [] and found(text + "    y = 2\n") == ["f.py A"]
    assert found("x = 1\n" * 400) == [] and found("x = 1\n" * 401) == ["f.py"]
