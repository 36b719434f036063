"""The tutorials: every command runs as written, with the output of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_tutorial import ROOT, walk

pytestmark = pytest.mark.slow


def test_first_ten_minutes(tmp_path: Path) -> None:
    """`make run` is replaced by what it starts; its service is stopped before the next one."""
    with walk("first-ten-minutes.md", tmp_path) as page:
        before, make, after = page.text.partition("```sh\nmake run\n```\n")
        demo = (ROOT / "config.yaml").read_text(encoding="utf-8")
        demo = demo.replace("port: 8080", f"port: {page.ports['8080']}")
        (tmp_path / "demo.yaml").write_text(demo.replace("deploy/", f"{ROOT}/deploy/"))
        assert make
        page.text, rest = after.split("Stop the demo")
        page.start("tornado-idv serve --config ~/demo.yaml")
        page.follow()
        page.commands.stop("serve", "--config", f"{tmp_path}/demo.yaml", "")
        page.text = rest
        page.follow()
        assert page.commands.stop("serve", "") == 0


def test_your_users(tmp_path: Path) -> None:
    with walk("your-users.md", tmp_path) as page:
        page.text, _, _ = page.text.partition("## A table that you have")
        page.follow()


def test_caching_proxy(tmp_path: Path) -> None:
    with walk("caching-proxy.md", tmp_path) as page:
        page.follow()
