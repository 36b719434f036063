"""The option ``--json``: what scripts read is JSON, or nothing, also after an error."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.processes.commands import commands
from support.processes.process import Invoke
from tornado_idv.cli import main
from tornado_idv.errors import StartError

COMMANDS = dict(commands(main))
ARGUMENTS = {
    "cache purge": ["--all"],
    "explain": ["@alice"],
    "keys import": ["list.jsonl"],
    "lookup": ["@alice"],
    "users compare": ["one", "other"],
    "users count": ["--from", "one"],
    "users import": ["list.csv", "--to", "one"],
    **{
        f"keys {name}": ["crm"]
        for name in ("disable", "enable", "issue", "revoke", "rotate", "show")
    },
}


WITH_JSON = [
    name
    for name, command in COMMANDS.items()
    if any("--json" in each.opts for each in command.params)
]

WITHOUT_CONFIG = {"plugins", "drill", "reconcile"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORNADO_IDV_CONFIG", raising=False)
    (tmp_path / "list.csv").write_text("nickname,card_number,plan\n")
    (tmp_path / "list.jsonl").write_text("{}\n")
    return tmp_path


@pytest.mark.parametrize("text", [None, "backends: [", "admin: 1\nauth: 1\n"])
@pytest.mark.parametrize("name", [each for each in WITH_JSON if each not in WITHOUT_CONFIG])
def test_errors_are_json(invoke: Invoke, folder: Path, name: str, text: str | None) -> None:
    """A missing file, one that is not YAML, and one with invalid settings."""
    if text is not None:
        (folder / "config.yaml").write_text(text)
    result = invoke(*name.split(), *ARGUMENTS.get(name, []), "--json")
    assert result.exit_code in {1, 3}
    record = json.loads(result.stdout)
    assert record["ok"] is False
    assert all(each["message"] for each in record["problems"])
    assert result.stderr == ""


def test_error_without_config_is_json(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=StartError("a plugin cannot be loaded"))
    monkeypatch.setattr("tornado_idv.features.check.commands.plugin_manager", fail)
    assert json.loads(invoke("plugins", "--json").stdout)["ok"] is False


@pytest.mark.parametrize("name", WITH_JSON)
def test_wrong_use_prints_nothing_on_standard_output(invoke: Invoke, name: str) -> None:
    result = invoke(*name.split(), *ARGUMENTS.get(name, []), "--json", "--no-such-option")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")
