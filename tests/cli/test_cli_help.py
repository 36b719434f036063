"""What the commands say of themselves, and which plugins there are."""

import json
import re
import subprocess
import sys
from functools import partial
from runpy import run_path
from types import SimpleNamespace
from unittest.mock import Mock

import click
import pytest

import tornado_idv
from support.processes.process import Invoke
from tornado_idv import hookimpl
from tornado_idv.cli import Commands, main
from tornado_idv.registry import plugin_manager

CONTEXT = click.Context(main)
COMMANDS = [
    *("cache", "check", "drill", "explain", "health", "init", "keys", "lookup", "migrate"),
    *("openapi", "plugins", "postgres", "reconcile", "reload", "schema", "serve"),
    *("status", "users"),
]


def command_of(name: str) -> click.Command:
    found = main.get_command(CONTEXT, name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["record", "verify-fixture"])
def test_removed_command_names_what_replaces_it(invoke: Invoke, name: str) -> None:
    result = invoke(name, "--from", "crm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Error: {name} was removed in 1.0; use users export" in result.stderr


CARELESS = SimpleNamespace(idv_commands=hookimpl(lambda: {}["oops"]))
"""A plugin whose commands cannot be had."""
SECRET = [click.Option(["--key"], default="of the environment")]
NAMED = [click.Command("serve", help="Impostor."), click.Command("ask", help="Ask.", params=SECRET)]
NAMESAKE = SimpleNamespace(idv_commands=hookimpl(lambda: NAMED))


def test_built_in_commands_work_beside_a_broken_plugin_and_a_namesake(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plugin in (NAMESAKE, CARELESS):
        only = partial(plugin_manager, entry_points=False, plugins=[plugin])
        monkeypatch.setattr("tornado_idv.cli.plugin_manager", only)
        monkeypatch.setattr(main, "commands", Commands().commands)
        result = invoke("--help")
        assert "Impostor." not in result.stdout
        assert ("Ask." in result.stdout) == (plugin is NAMESAKE)
        assert "of the environment" not in invoke("ask", "--help").stdout
    assert result.exit_code == 0
    assert "serve" in result.stdout
    assert "warning: the commands of plugins are missing" in result.stderr
    assert invoke("postgres").exit_code == 2


@pytest.mark.parametrize("arguments", [["--help"], [], ["no-such"]])
def test_interrupt_while_plugins_are_loaded_exits_with_130(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("tornado_idv.cli.plugin_manager", interrupted)
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (130, "\ninterrupted\n")


@pytest.mark.slow
def test_help_and_version_import_no_library_but_those_of_the_command_line() -> None:
    """Every start of the command would pay for another one, and for a second search for plugins."""
    program = (
        "import os, sys\n"
        "of_python = {*sys.modules}\n"  # also what a distribution adds, such as sitecustomize
        "import importlib.metadata as m\n"
        "from click.testing import CliRunner\n"
        "from tornado_idv.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['--version']).exit_code == 0\n"
        "assert os.environ['PYDANTIC_DISABLE_PLUGINS'] == '__all__'\n"  # they would see secrets
        "added = {*sys.modules} - of_python\n"
        "imported = {each.partition('.')[0] for each in added if each[0] != '_'}\n"
        "print(*(imported - sys.stdlib_module_names))\n"
        "searches, search = [], m.distributions\n"
        "m.distributions = lambda: searches.append(1) or search()\n"
        "assert CliRunner().invoke(main, ['schema']).exit_code == 0\n"
        "assert len(searches) == 1"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported = done.stdout.decode().split()
    assert {each for each in imported if "idv" not in each} == {"click", "pluggy"}


def test_every_command_has_a_whole_line(invoke: Invoke) -> None:
    """The first sentence of its help; none is cut short for want of room."""
    _, _, text = invoke("--help").stdout.partition("Commands:")
    listed = re.findall(r"^  ([\w-]+) {2,}(\S.*)$", text, re.MULTILINE)
    assert [name for name, _ in listed] == COMMANDS
    for name, sentence in listed:
        assert sentence == command_of(name).get_short_help_str(limit=100)
        assert re.search(r"[^.]\.$", sentence)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(invoke: Invoke, name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert result.stdout == invoke(name, "-h").stdout
    assert result.stdout.startswith(f"Usage: main {name}")
    assert max(map(len, result.stdout.splitlines())) <= 100
    options = [each for each in command_of(name).params if isinstance(each, click.Option)]
    assert all(option.help and option.help.endswith(".") for option in options)


def test_the_module_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "plugins", "--help"])
    with pytest.raises(SystemExit, match="0"):
        run_path(f"{tornado_idv.__path__[0]}/__main__.py", run_name="__main__")
    assert capfd.readouterr().out.startswith("Usage: tornado-idv plugins")


def test_our_plugins_are_listed_each_with_a_sentence(invoke: Invoke) -> None:
    rows = [line.split(maxsplit=2) for line in invoke("plugins").stdout.splitlines()]
    kinds = {kind: module for kind, module, _ in rows}
    assert list(kinds) == sorted(kinds)
    ours = {each: f"idv_{each}" for each in ("postgres", "sqlite", "upstream", "yaml")}
    assert kinds.items() >= ours.items()
    assert all(text.endswith(".") for _, _, text in rows)
    assert json.loads(invoke("plugins", "--json").stdout) == kinds


@pytest.mark.parametrize("module", ["idv_yaml", "idv_yaml.backend"])
@pytest.mark.parametrize("name", ["plugins", "schema"])
def test_a_plugin_that_cannot_be_loaded_is_reported(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = invoke(name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("a plugin cannot be loaded: ")
