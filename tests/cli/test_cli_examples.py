"""Examples in the help, completion in a shell, and where the configuration is found."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.commands import commands
from support.processes.process import Invoke, command, running
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, USERS, Client, write_config
from tornado_idv.cli import common, main

TORNADO_IDV = Path(sys.executable).with_name("tornado-idv")


COMMANDS = dict(commands(main))


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_examples_of_the_command_that_are_valid(
    invoke: Invoke, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their options and arguments are; backends need not exist."""
    for file in ("users.csv", "members.csv", "keys.jsonl", "accounts.csv"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    examples = re.findall(
        r"^    (tornado-idv .*)$", invoke(*name.split(), "--help").stdout, re.MULTILINE
    )
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" (?:&&|\||>) ", example)[0])[1:]
        if "COMMAND" in words:
            continue
        (found,) = [each for each in COMMANDS if [*each.split()] == words[: len(each.split())]]
        assert not name or found == name or "&&" in example
        parent = click.Context(main, **main.context_settings)
        COMMANDS[found].make_context(found, words[len(found.split()) :], parent).close()


def test_main_help_says_how_to_complete(invoke: Invoke, tmp_path: Path) -> None:
    bash = find_tool("bash")
    (line,) = re.findall(r"^    (eval .*)$", invoke("--help").stdout, re.MULTILINE)
    script = f"""\
PATH={shlex.quote(str(TORNADO_IDV.parent))}:$PATH
{line}
COMP_WORDS=(tornado-idv keys ro)
COMP_CWORD=2
_tornado_idv_completion tornado-idv ro keys
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        [bash, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "rotate\n"


@pytest.mark.parametrize(
    "words", ["users export -c other --from", "cache purge --backend", "record"]
)
def test_name_of_a_backend_is_completed(tmp_path: Path, words: str) -> None:
    """From the configuration in the current folder, also where it refers to a missing secret."""
    entries = "[{name: crm, base_url: '${env:NO_SUCH}'}, {name: ac}, {name: '${env:CARDS}'}]"
    (tmp_path / ("other" if "other" in words else "config.yaml")).write_text(
        f"backends: {entries}\n"
    )
    environment = {
        "_TORNADO_IDV_COMPLETE": "bash_complete",
        "COMP_WORDS": f"tornado-idv {words} c",
        "COMP_CWORD": str(len(words.split()) + 1),
        "CARDS": "cards",
    }
    done = command(cwd=tmp_path, env=environment)
    names = ["cache", "check"] if words == "record" else ["crm", "cards"]  # "record" was removed
    completed = done.stdout.replace("plain,", "").split()
    assert (done.returncode, completed, done.stderr) == (0, names, "")


@pytest.mark.parametrize("text", [None, "", "[", "backends: [a]"])
def test_nothing_is_completed_from_an_invalid_file(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    context, option = click.Context(main), click.Option(["--from"])
    context.params["config_path"] = tmp_path / "config.yaml"
    assert common.complete_backend(context, option, "") == []


def test_port_of_the_command_line_is_used_and_a_reload_does_not_complain(tmp_path: Path) -> None:
    config = write_config(tmp_path, WITH_ADMIN.replace("port: 0,", "listen: ['unix:http.sock'],"))
    with running(config, "--port", "0") as service:
        assert Client(service.port).by_input("@alice").status == 200
        assert ask_admin(service, "/reload", {}).json == {"status": "ok", "needs_restart": []}
        assert not (tmp_path / "http.sock").exists()


def test_configuration_is_found_by_option_variable_folder_and_etc(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*options: str) -> str:
        done = invoke("check", "--config-only", *options)
        assert done.exit_code == 0, done.output
        return done.stdout.partition("\n")[0]

    (tmp_path / "here").mkdir()
    named, variable, etc = (tmp_path / name for name in ("named.yaml", "variable.yaml", "etc.yaml"))
    for path in (named, variable, etc, tmp_path / "here" / "config.yaml"):
        path.write_text(CONFIG + USERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "_IN_ETC", etc)
    assert shown() == f"ok: {etc}"
    monkeypatch.chdir(tmp_path / "here")
    assert shown() == "ok: config.yaml"
    monkeypatch.setenv("TORNADO_IDV_CONFIG", str(variable))
    assert shown() == f"ok: {variable}"
    assert shown("--config", str(named)) == f"ok: {named}"
