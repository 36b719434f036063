"""Adds the pages outside of docs/ to the site: those of the root, of deploy/ and of plugins/.

A link such as ``../../plugins/x/README.md`` works in the repository as it is. The site has other
paths, so links are rewritten; one to a file that is not in the
site, such as a configuration, leads to the README.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ["*.md", "deploy/README.md", "examples/*/README.md", "plugins/*/README.md"]
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = site_path(str(path.relative_to(ROOT)))
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links to what has another path in the site."""
    here = page.file.src_uri
    source = posixpath.relpath(page.file.abs_src_path or "", ROOT.as_posix())

    def rewrite(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if "://" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        uri = site_path(path)
        if files.get_file_from_path(uri) is None:
            uri, anchor = site_path("README.md"), ""  # the folders and files of the repository
        return posixpath.relpath(uri, posixpath.dirname(here) or ".") + anchor

    return _LINK.sub(rewrite, markdown)


def site_path(path: str) -> str:
    """Return the path in the site of a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if "/" in path else f"project/{path}"
