"""The tutorials and the comparison: every command runs, with the output of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_tutorial import ROOT, walk

from support.processes.proxies import find_tool
from support.recipes.peer_process import MODULES, PROGRAMS

pytestmark = pytest.mark.slow

COMPARISON = (ROOT / "docs" / "explanation" / "comparison.md").read_text(encoding="utf-8")


def tutorial(name: str) -> str:
    return (ROOT / "docs" / "tutorial" / f"{name}.md").read_text(encoding="utf-8")


def test_first_ten_minutes(tmp_path: Path) -> None:
    """`make run` is replaced by what it starts; its service is stopped before the next one."""
    with walk(tutorial("first-ten-minutes"), tmp_path) as page:
        _, make, after = page.text.partition("```sh\nmake run\n```\n")
        assert make
        demo = (ROOT / "config.yaml").read_text(encoding="utf-8")
        for port, free in page.ports.items():
            demo = demo.replace(f"port: {port}", f"port: {free}")
        (tmp_path / "demo.yaml").write_text(demo.replace("deploy/", f"{ROOT}/deploy/"))
        page.text, rest = after.split("In a browser, ", 1)
        page.start("tornado-idv serve --config ~/demo.yaml")
        page.follow()
        page.commands.stop("serve", "--config", f"{tmp_path}/demo.yaml", "")
        page.text = rest
        page.follow()
        assert page.commands.stop("serve", "") == 0


def test_your_users(tmp_path: Path) -> None:
    with walk(tutorial("your-users"), tmp_path) as page:
        page.text, _, _ = page.text.partition("## A table that you have")
        page.follow()


def test_caching_proxy(tmp_path: Path) -> None:
    with walk(tutorial("caching-proxy"), tmp_path) as page:
        page.follow()


@pytest.mark.parametrize(
    ("heading", "tool", "folder"),
    [
        ("nginx proxy_cache", "nginx", Path("/usr/sbin")),
        ("Datasette", "datasette", PROGRAMS),
        ("Test doubles", "json-server", MODULES / ".bin"),
    ],
)
def test_comparison(heading: str, tool: str, folder: Path, tmp_path: Path) -> None:
    programs = str(Path(find_tool(tool, folder)).parent)
    section = COMPARISON.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    with walk(section, tmp_path, programs) as page:
        page.follow()
