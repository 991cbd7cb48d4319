"""The mutation tool: its mutants of a few lines by hand, and that its list of equivalent ones is not out of date."""

import ast

import pytest
from mutate import ROOT, equivalent, files_that_test, mutants, sources, without_line

SOURCE = '''
def f(x: int = 3, *, y=True) -> "a < b":
    """Text with 1 < 2."""
    if x < (1 + y) and not y:
        x.clear()
        raise ValueError(f"{x + 1}")
    z = (x - 1).clamp(min=0) * -2
    return [a for a, b in zip(z, z, strict=True)]
'''


def changed(line):
    return [m.what for m in mutants("f.py", SOURCE) if m.line == line]


def test_mutants_by_hand():
    assert changed(2) == ["constant: 3 -> 6", "constant: True -> False"]
    assert set(changed(4)) == {
        "comparison: x < (1 + y) -> (x <= (1 + y))", "arithmetic: 1 + y -> (1 - y)", "constant: 1 -> 2",
        "drop an operand: x < (1 + y) and not y -> ((not y))", "drop an operand: x < (1 + y) and not y -> ((x < (1 + y)))",
        "drop a sign: not y -> (y)", "condition: x < (1 + y) and not y -> True", "condition: x < (1 + y) and not y -> False",
    }  # fmt: skip
    assert changed(5) == ["drop a statement: x.clear() -> pass"] and changed(3) == changed(6) == changed(8) == []
    assert set(changed(7)) == {
        "arithmetic: (x - 1).clamp(min=0) * -2 -> ((x - 1).clamp(min=0) / (-2))", "arithmetic: x - 1 -> (x + 1)",
        "constant: 1 -> 2", "drop a call: (x - 1).clamp(min=0) -> (x - 1)", "constant: 0 -> 1",
        "drop a sign: -2 -> (2)", "constant: 2 -> 4",
    }  # fmt: skip


def test_every_mutant_is_python_in_another_spelling():
    text = SOURCE.encode()
    for m in mutants("f.py", SOURCE):
        other = (text[: m.start] + m.text.encode() + text[m.end :]).decode()
        assert ast.dump(ast.parse(other)) != ast.dump(ast.parse(SOURCE)), m.what


@pytest.mark.parametrize("path", sorted({key.split(" ", 1)[0] for key in equivalent()}))
def test_equivalent_mutants_are_mutants(path):
    found = {without_line(m.key) for m in mutants(path, (ROOT / path).read_text())}
    assert {key for key in equivalent() if key.startswith(f"{path} ")} <= found


def test_sources_have_tests():
    for path in sources(["fl_lightning/strategies", "fl_lightning/engine", "lit_models/objectives", "lit_models/neighgen"]):
        if mutants(path, (ROOT / path).read_text()):
            assert files_that_test(path), f"{path}: name its tests in `ELSEWHERE` of tests/mutate.py"
