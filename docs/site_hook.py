"""Adds what is outside of docs/ to the site: pages, and the files that pages link to.

A link such as ``../../plugins/x/README.md`` works in the repository as it is. The site has other
paths, so links are rewritten. A link to what the site does not have fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = ["*.md", "deploy/README.md", "examples/*/README.md", "plugins/*/*.md"]
FILES = [
    "LICENSE",
    "config.schema.json",
    "deploy/nginx/*.conf",
    "deploy/haproxy/*.cfg",
    "examples/double/*.mjs",
]
_LINK = re.compile(r"(?<=\]\()(?!\w+://|#)([^)#\s]+)")
_FENCE = re.compile(r" *```")
_ITEM = re.compile(r"(?:\d+\.|-) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages and files."""
    for pattern in PAGES + FILES:
        for path in sorted(ROOT.glob(pattern)):
            uri = site_path(str(path.relative_to(ROOT)))
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links to what has another path in the site, and the indentation of lists."""
    here = posixpath.dirname(page.file.src_uri) or "."
    folder = posixpath.dirname(posixpath.relpath(page.file.abs_src_path or "", ROOT.as_posix()))

    def rewrite(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return posixpath.relpath(site_path(path), here)

    return _LINK.sub(rewrite, indent_items(markdown))


def site_path(path: str) -> str:
    """Return the path in the site of a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if "/" in path else f"project/{path}"


def indent_items(markdown: str) -> str:
    """Indent what belongs to an item of a list by four, as Python-Markdown requires it.

    With less, as in the repository, a code block ends the list, and each step is number 1.
    """
    lines: list[str] = []
    width, in_code = 0, False
    for line in markdown.splitlines():
        in_code ^= bool(_FENCE.match(line))
        if width and line.startswith(" " * width):
            lines.append(" " * 4 + line[width:])
            continue
        if line:
            item = None if in_code else _ITEM.match(line)
            width = len(item[0]) if item else 0
        lines.append(line)
    return "\n".join(lines)
