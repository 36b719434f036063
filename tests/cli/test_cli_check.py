"""``tornado-idv check`` and ``tornado-idv schema``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from running import Invoke

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "config.schema.json"
OUR_CONFIGS = [
    ROOT / "config.yaml",
    *(
        path
        for path in sorted((ROOT / "deploy/demo").glob("*.yaml"))
        if "backends:" in path.read_text()
    ),
]
BROKEN = """\
profile_sites: [https://profiles.example]
sever: {port: 8080}
server: {port: 99999}
backends:
  - {name: users, kind: yml, path: users.yaml}
"""


def test_a_good_file_is_told_with_what_would_run(
    invoke: Invoke, config: Callable[..., Path]
) -> None:
    """On one screen, with the texts in one column."""
    path = config("name: users, kind: yaml, path: users.yaml", more="server: {port: 4711}\n")
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stderr) == (0, "")
    ok, blank, *rows = result.stdout.splitlines()
    assert (ok, blank) == ("ok", "")
    assert len(rows) < 20
    assert all(re.match(r"[a-z0-9 ]{14} \S", row) for row in rows)
    assert "listens on     http://127.0.0.1:4711" in rows
    assert any("users (yaml)" in row for row in rows)


def test_a_good_file_is_told_to_scripts(invoke: Invoke, config: Callable[..., Path]) -> None:
    path = config("name: users, kind: yaml, path: users.yaml")
    result = invoke("check", "-c", path, "--json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["ok"]) == (0, True)
    assert ["listens on", "http://127.0.0.1:8080"] in record["summary"]


def test_every_problem_is_told_with_its_place(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BROKEN)
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    first, second, third = result.stderr.splitlines()
    assert first.startswith(f"{path}:2:1: sever: ")
    assert second.startswith(f"{path}:3:16: server.port: ")
    assert third.startswith(f"{path}:5:25: backends[0].kind: ")
    assert "server" in first.partition("sever: ")[2]
    assert "yaml" in third


def test_every_problem_is_told_to_scripts(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BROKEN)
    result = invoke("check", "-c", path, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    record = json.loads(result.stdout)
    assert record["ok"] is False
    assert [each["line"] for each in record["problems"]] == [2, 3, 5]
    assert set(record["problems"][0]) == {"file", "line", "column", "path", "message"}


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["for people", "for scripts"])
def test_a_file_that_is_not_there_is_told_in_a_sentence(
    invoke: Invoke, tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "config.yaml"
    result = invoke("check", "-c", path, *options)
    assert result.exit_code == 1
    assert result.stderr == f"{path}: cannot be read: No such file or directory\n"


def test_the_schema_in_the_repository_is_that_of_the_plugins(invoke: Invoke) -> None:
    printed = invoke("schema").stdout
    assert SCHEMA.read_text(encoding="utf-8") == printed, (
        "renew it with: tornado-idv schema > config.schema.json"
    )


@pytest.mark.parametrize("path", OUR_CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_own_configurations_are_good(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """For the check, and for an editor that reads the schema."""
    for name in re.findall(r"\$\{env:([^}]+)\}", path.read_text(encoding="utf-8")):
        monkeypatch.setenv(name, "a-token-from-the-environment")
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stderr) == (0, "")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert [error.message for error in validator.iter_errors(_as_an_editor_reads(path))] == []


def _as_an_editor_reads(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
