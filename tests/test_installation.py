"""What an operator is told to install, and with which interpreter."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import idv_postgres.options
import idv_redis.options

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ("postgres", idv_postgres.options.NOT_INSTALLED),
        ("redis", idv_redis.options.NOT_INSTALLED),
    ],
)
def test_missing_library_is_to_be_installed_for_the_interpreter_that_runs(
    extra: str, advice: str
) -> None:
    """In the versions of setup.py, also in the documents."""
    declared = map(Requirement, importlib.metadata.requires("tornado-idv") or ())
    (required,) = (
        each
        for each in declared
        if each.marker
        and each.marker.evaluate({"extra": extra})
        and not each.marker.evaluate({"extra": ""})
    )
    start, _, rest = advice.partition(" -m pip install '")
    assert start == f"{required.name} is not installed; install it with: {sys.executable}"
    assert Requirement(rest.removesuffix("'")) == Requirement(str(required).partition(";")[0])
    readme = (ROOT / "plugins" / f"idv_{extra}" / "README.md").read_text(encoding="utf-8")
    assert f"`pip install '{rest}`" in readme


def test_no_advice_names_a_package_of_somebody_else() -> None:
    """This project publishes none, so whoever owns its name in a registry would be trusted."""
    for folder in ("tornado_idv", "plugins", "docs", "deploy", "."):
        files = (ROOT / folder).glob("*" if folder == "." else "**/*")
        for file in files:
            if (
                file.suffix in {".py", ".md", ".sh", ".yaml", ".toml"}
                and file.name != "CHANGELOG.md"
            ):
                assert "tornado-idv[" not in file.read_text(encoding="utf-8"), file
