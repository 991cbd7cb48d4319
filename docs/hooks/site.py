"""What the site needs beyond MkDocs: equations as MathML, notebooks as pages, and the notation of our docstrings.

Everything happens while the site is built, so that a reader's browser loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
OWN_NAME = re.compile(r"`((?:fl_lightning|lit_models|datamodules)(?:\.\w+)+)`")


def mathml(latex: str, display: str) -> str:
    latex = latex.strip()
    if "&" in latex and "\\begin" not in latex:  # reStructuredText aligns by itself
        latex = rf"\begin{{align*}}{latex}\end{{align*}}"
    return convert(latex, display=display)


class Notation(Preprocessor):
    """``$$`` blocks, reStructuredText's ``.. math::``, ``:math:`` and roles, and paragraphs whose columns are aligned."""

    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        text = re.sub(r"^\$\$\n(.*?)\n\$\$$", self.block, text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"^\.\. math::[ \t]*(.*(?:\n(?: +.*|(?=\n)))*)", self.block, text, flags=re.MULTILINE)
        text = re.sub(r":math:`([^`]+)`", lambda found: self.keep(mathml(found[1], "inline")), text)
        text = re.sub(r":(?:class|func|meth|attr|mod):`~?([^`]+)`", r"`\1`", text)
        return "\n\n".join(self.columns(paragraph) for paragraph in text.split("\n\n")).split("\n")

    def block(self, found: re.Match[str]) -> str:
        return f"\n{self.keep(mathml(found[1], 'block'))}\n"

    def columns(self, paragraph: str) -> str:
        """As it stands if columns are aligned by spaces (lists of equations); tables, lists and code are Markdown's."""
        if re.match(r"\s*[|\-*#>\d]|    ", paragraph) or not re.search(r"\S {3,}\S", paragraph):
            return paragraph
        rows = [line for line in paragraph.strip("\n").split("\n") if not re.fullmatch(r"=[= ]+", line)]  # a table's rules
        return self.keep(f"<pre><code>{html.escape(chr(10).join(rows))}</code></pre>")

    def keep(self, content: str) -> str:
        return self.md.htmlStash.store(content)


class NotationExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Notation(md), "notation", 21)  # after fenced code, which is put aside first


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(NotationExtension())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Each notebook as a Markdown page. Outputs are not stored, so text and code are all there is."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            cells = json.loads(Path(file.abs_src_path).read_text(encoding="utf-8"))["cells"]
            files.remove(file)
            files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=as_markdown(cells)))
    return files


def as_markdown(cells: list[dict[str, Any]]) -> str:
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to notebooks lead to their pages; links to files outside the site are text; names on papers' pages are links."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        if ":" in target:
            return found[0]
        if posixpath.normpath(posixpath.join(folder, target)).startswith(".."):
            return f"`{target.removeprefix('../')}`"
        return f"[{label}]({re.sub('[.]ipynb$', '.md', target)}{anchor})"

    markdown = LINK.sub(link, markdown)
    return OWN_NAME.sub(r"[`\1`][\1]", markdown) if folder == "papers" else markdown
