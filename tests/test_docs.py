"""The prose is true: every setting, hook, command and error code is in it, and no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import get_args, get_origin

import click
import pytest
from editor import as_editor_reads
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from running import command

from tornado_idv import BackendOptions, hookspecs
from tornado_idv.cli import main
from tornado_idv.config.load import load_without_references
from tornado_idv.config.settings import KeySettings, Settings
from tornado_idv.registry import backend_kinds, plugin_manager
from tornado_idv.web.refusals import Refusal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
PLUGINS = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def first_cells(text: str) -> set[str]:
    """What stands in backquotes at the beginning of the rows of the tables."""
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of a model's settings; those of a list's items with ``[]``."""
    for name, field in model.model_fields.items():
        yield prefix + name
        kind = field.annotation
        inner = next(iter(get_args(kind)), kind)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(
                inner, f"{prefix}{name}{'[]' if get_origin(kind) is tuple else ''}."
            )


def code_blocks(text: str, language: str) -> list[str]:
    """Also those that are indented, as in a list."""
    blocks = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [dedent(block[2]) for block in blocks]


def test_every_setting_is_documented() -> None:
    assert first_cells(CONFIGURATION) == set(settings_of(Settings))


def test_every_option_of_every_kind_is_in_its_plugin_s_readme() -> None:
    for kind, backend in backend_kinds(plugin_manager()).items():
        own = set(backend.options_type.model_fields) - set(BackendOptions.model_fields)
        readme = (ROOT / "plugins" / f"idv_{kind}" / "README.md").read_text(encoding="utf-8")
        documented = {cell.partition(".")[0] for cell in first_cells(readme)}
        assert own - documented == set(), kind
        headings = re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
        assert [*filter({*HEADINGS}.__contains__, headings)] == HEADINGS


HEADINGS = ["Name", "Description", "Options", "Failures", "Examples"]


def test_every_error_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", HTTP, re.MULTILINE)
    assert {(code, int(status)) for code, status in rows} == {
        (refusal.code, refusal.status) for refusal in Refusal
    }


def test_every_hook_is_documented_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(idv_\w+)` \|([^|]*)\|", PLUGINS, re.MULTILINE)
    documented = {hook: tuple(re.findall(r"`(\w+)`", arguments)) for hook, arguments in rows}
    specs = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("idv_")}
    assert documented == {
        name: spec.__code__.co_varnames[: spec.__code__.co_argcount] for name, spec in specs.items()
    }


def test_every_command_is_documented() -> None:
    names = main.list_commands(click.Context(main))
    assert {f"tornado-idv {name}" for name in names} == {
        cell for cell in first_cells(README) if cell.startswith("tornado-idv ")
    }


CONFIGURATIONS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{i}")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/*.md")])
    for i, block in enumerate(code_blocks(path.read_text(encoding="utf-8"), "yaml"), start=1)
    if "backends:" in block
]


@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_every_configuration_in_the_documents_is_valid(tmp_path: Path, block: str) -> None:
    """For the loader and for an editor; each is laid over a whole one, without its secrets."""
    text = block if "profile_sites" in block else f"profile_sites: [https://x.example]\n{block}"
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    load_without_references(path, backend_kinds(plugin_manager()), {})
    validator = Draft202012Validator(json.loads((ROOT / "config.schema.json").read_text()))
    assert [error.message for error in validator.iter_errors(as_editor_reads(text))] == []


def test_the_documents_have_configurations() -> None:
    assert len(CONFIGURATIONS) > 15


def test_the_plugin_in_the_documents_works(pytester: pytest.Pytester) -> None:
    """It passes the suite that the same page gives for it."""
    plugin, suite = code_blocks(PLUGINS, "python")
    pytester.makepyfile(idv_csv=plugin, test_idv_csv=suite)
    pytester.makeini("[pytest]\naddopts = -W ignore::Warning")
    outcome = pytester.runpytest_subprocess("-q")
    outcome.assert_outcomes(passed=18)


def test_the_plugin_in_the_documents_reports_a_wrong_header(tmp_path: Path) -> None:
    """As something an operator can fix, without any content of the file."""
    plugin, _ = code_blocks(PLUGINS, "python")
    (tmp_path / "idv_csv.py").write_text(plugin, encoding="utf-8")
    (tmp_path / "users.csv").write_text("nick,card\ncanary,4000\n", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "profile_sites: [https://profiles.example]\n"
        "backends: [{name: a, kind: csv, path: users.csv}]\n",
        encoding="utf-8",
    )
    _make_known(tmp_path, code_blocks(PLUGINS, "toml")[0])
    done = command("check", "-c", "config.yaml", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"config.yaml:2:12: backends[0]: {tmp_path / 'users.csv'}: "
        "not CSV in UTF-8 with the columns nickname, card_number and plan\n"
    )


def _make_known(folder: Path, project: str) -> None:
    """Installs the module in the folder, as far as a search for plugins can tell."""
    points = tomllib.loads(project)["project"]["entry-points"]["tornado_idv"]
    (folder / "idv_csv-1.0.dist-info").mkdir()
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (folder / "idv_csv-1.0.dist-info" / "entry_points.txt").write_text(f"[tornado_idv]\n{lines}")
    (folder / "idv_csv-1.0.dist-info" / "METADATA").write_text("Name: idv-csv\nVersion: 1.0\n")


def test_the_plugin_in_the_documents_can_be_built(tmp_path: Path) -> None:
    """The wheel holds the module and announces it."""
    (project,) = code_blocks(PLUGINS, "toml")
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    (tmp_path / "idv_csv.py").write_text(code_blocks(PLUGINS, "python")[0], encoding="utf-8")
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert "idv_csv.py" in archive.namelist()
        (points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert archive.read(points).split() == [b"[tornado_idv]", b"csv", b"=", b"idv_csv"]


def test_the_demo_has_no_count_to_update() -> None:
    text = (ROOT / "deploy" / "demo" / "users.yaml").read_text(encoding="utf-8")
    assert text.startswith("users:\n")


def test_no_document_mentions_metrics() -> None:
    """There are none yet."""
    described = str(KeySettings.model_json_schema())
    for text in (README, CONFIGURATION, HTTP, PLUGINS, described):
        assert "metrics" not in text


def test_the_key_in_the_readme_is_that_of_the_demo() -> None:
    token = re.search(r"Bearer (idv_demo_\w+)", README)
    assert token is not None
    assert token[1] in (ROOT / "config.yaml").read_text(encoding="utf-8")
