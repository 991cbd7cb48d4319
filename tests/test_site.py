"""The docs site has every page, and its reference every name: what can be said without building it (`make docs` does that)."""

import re
from pathlib import Path

import yaml
from test_papers import PAPERS, exists

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REFERENCE = {name: page.stem for page in sorted((DOCS / "api").glob("*.md"))
             for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}  # fmt: skip


def pages(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for value in (entry.values() if isinstance(entry, dict) else entry) for page in pages(value)]


def test_every_page_and_notebook_is_in_the_navigation_once():
    there = [p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")]
    there += [p.relative_to(DOCS).with_suffix(".md").as_posix() for p in DOCS.rglob("*.ipynb")]
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(pages(settings["nav"])) == sorted(there)


def test_nothing_is_fetched_by_a_readers_browser():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False and "extra_javascript" not in settings
    assert not any("http" in style for style in settings["extra_css"]) and "http" not in (DOCS / "site.css").read_text()


def test_the_reference_names_what_there_is():
    assert [name for name in REFERENCE if not exists(name)] == [] and len(REFERENCE) > 50


def test_every_strategy_and_objective_is_in_the_reference():
    for folder, page in (("fl_lightning/strategies", "strategies"), ("lit_models/objectives", "objectives")):
        public = {node for node in re.findall(r"from ([\w.]+) import", (ROOT / folder / "__init__.py").read_text())}
        assert {REFERENCE.get(module) for module in public} == {page}, folder


def test_what_paper_pages_cite_is_in_the_reference():
    for page in PAPERS:
        for name in re.findall(r"`((?:fl_lightning|lit_models|datamodules)(?:\.\w+)+)`", page.read_text(encoding="utf-8")):
            assert name in REFERENCE or name.rpartition(".")[0] in REFERENCE, f"{page.stem}: {name}"
