"""Settings of Sphinx for the documentation site: `make docs`.

The pages are Markdown that reads well on its own. Their folder is the whole repository, so that a
link to an example or to a file of it works in both. The navigation follows the links of the pages
that list others.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
LISTS = ("docs/index", "docs/runbooks/README", "docs/design/README", "examples/README")
"""Pages whose links are the navigation: a caption for each section."""

project = "Regroup"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "charts/regroup/README.md",
    "examples/*.md",
    "examples/*/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
nitpicky = True
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Regroup {version}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["start_page"]
html_theme_options = {"top_of_page_buttons": []}
pygments_style, pygments_dark_style = "friendly", "native"


def with_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append what Sphinx needs for the navigation to a page that lists others."""
    if page not in LISTS:
        return
    sections = re.split(r"^## (.+)$", source[0], flags=re.M)
    for title, text in zip([project, *sections[1::2]], sections[0::2], strict=True):
        links = re.findall(r"\]\(([^)#]+\.md)\)", text)
        pages = [name for name in dict.fromkeys(links) if listed(page, name)]
        if pages:
            caption = f":caption: {title}\n" if page == root_doc else ""
            lines = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n{caption}\n{lines}\n```\n"


def listed(page: str, link: str) -> bool:
    """Whether a link leads to a page that belongs to this list: in its folder, or below the root's.

    A list names pages of other folders, too, which have their place elsewhere.
    """
    return page == root_doc or not link.startswith("..")


def setup(app: Sphinx) -> None:
    """Register what is above.

    The map in CONTRIBUTING stays text here: what draws Mermaid comes from another host.
    """
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", with_navigation)
