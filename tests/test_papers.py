"""The paper pages are true of the sources: the names and tests that they cite exist, references to them have a heading."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))
SOURCES = [p for folder in ("fl_lightning", "lit_models", "datamodules", "tests", "benchmarks", "examples")
           for p in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip


@cache
def anchors(page: Path) -> set[str]:
    """Of the headings of a Markdown page, as GitHub and the site both make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings}


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def exists(dotted: str) -> bool:
    """Is this a module, or something that a module defines or exports?"""
    module, rest = dotted, []
    while module:
        try:
            found = import_module(module)
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            rest.insert(0, name)
            continue
        for name in rest:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def test_anchors_by_hand(tmp_path):
    (tmp_path / "page.md").write_text("# FedChem, FLIT and FLIT+\n\n```bash\n# no heading\n```\n\n## Warm-up\n")
    assert anchors(tmp_path / "page.md") == {"fedchem-flit-and-flit", "warm-up"}


def test_the_four_papers_have_pages():
    assert [page.stem for page in PAPERS] == ["fedchem", "fedpub", "fedsage", "fedsage_plus"]


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_cited_code_exists(page):
    names = re.findall(r"`((?:fl_lightning|lit_models|datamodules)(?:\.\w+)+)`", page.read_text(encoding="utf-8"))
    assert len(names) >= 7 and [name for name in names if not exists(name)] == []
    assert not exists("lit_models.objectives.flit.no_such_thing")


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_cited_tests_exist(page):
    cited = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    missing = [f"{path}::{name}" for path, name in cited
               if not (ROOT / path).is_file() or name not in functions(ROOT / path)]  # fmt: skip
    assert len(cited) >= 10 and missing == []


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_each_equation_names_its_code_and_its_test(page):
    """A section with an equation, or the last of several subsequent ones, says where it is computed and what proves it."""
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    with_equations = [section for section in sections if "$$" in section]
    assert len(with_equations) >= 3
    for section in with_equations:
        assert "\n- Code: `" in section and "\n- Tests: `" in section, section.split("\n", 1)[0]


def test_references_in_the_sources_have_a_page_and_a_heading():
    cited = {}
    for path in SOURCES:
        for page, anchor in re.findall(r"\b(docs/[\w/]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            cited.setdefault((page, anchor), path.relative_to(ROOT).as_posix())
    wrong = {f"{page}#{anchor}": path for (page, anchor), path in cited.items()
             if not (ROOT / page).is_file() or (anchor and anchor not in anchors(ROOT / page))}  # fmt: skip
    assert wrong == {} and sum(page.startswith("docs/papers/") for page, _ in cited) >= 12


def test_no_source_cites_a_document_that_is_not_here():
    """The contracts that the first sources cited are not part of the repository."""
    pattern = re.compile(r"\bspecs/|\b[Ss]pecs? (?:sections?|fed\w+|T?\d)")
    mine = Path(__file__).resolve()
    assert [p.name for p in SOURCES if p != mine and pattern.search(p.read_text(encoding="utf-8"))] == []


def test_links_between_pages_have_a_page_and_a_heading():
    wrong = []
    for page in sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
            to = (page.parent / target).resolve() if target else page
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert wrong == []
