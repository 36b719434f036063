"""Writes what the documentation has from the code: the page of all commands, and man pages.

``python docs/generate.py`` writes docs/reference/commands.md, with ``--man FOLDER`` man pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from tornado_idv.cli import main

PAGE = Path(__file__).parent / "reference" / "commands.md"
_HEAD = """\
# Commands

The help of every command, as `--help` prints it. These options are only named there:

| option | meaning |
|---|---|
| `-c`, `--config PATH` | the configuration file; also `$TORNADO_IDV_CONFIG`, \
or `/etc/tornado-idv/config.yaml` if there is none here; default: `config.yaml` |
| `--token-file PATH` | a file with a key of scope `admin`, for a listener that is not on loopback |
| `--json` | print JSON for scripts |
| `--store PATH` | the file of the key store; default: `auth.store` |

`make docs` generates this page. Output is UTF-8. If the result of a command cannot be written, as
behind `head`, the exit code is 3, but 0 if `keys` or `users import` has made a change.
"""
_COMMON = re.compile(
    r"^  (?:-c, )?(--config PATH|--token-file PATH|--store PATH|--json)  .*\n(?: {16,}.*\n)*",
    re.MULTILINE,
)
_HELP = re.compile(r"^  -h, --help  .*\n", re.MULTILINE)


def whole(command: click.Command) -> click.Command:
    """Return a command; of a group, one that has its commands, which ours imports on demand."""
    if not isinstance(command, click.Group):
        return command
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return click.Group(
        command.name,
        {name: whole(each) for name, each in found.items() if each is not None},
        help=command.help,
        epilog=command.epilog,
        params=command.params,
        context_settings=command.context_settings,
    )


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and those of its own commands."""
    yield context
    if isinstance(context.command, click.Group):
        for name, command in sorted(context.command.commands.items()):
            settings = context.command.context_settings
            yield from contexts(click.Context(command, context, name, **settings))


def all_commands() -> click.Context:
    """Return the context of the main command."""
    settings = {**main.context_settings, "terminal_width": 90}
    return click.Context(whole(main), info_name="tornado-idv", **settings)


def short_help(context: click.Context) -> str:
    """Return the help of a command, with only the names of options that many commands have.

    The commands of a group are left out: their own sections follow.
    """
    text = _HELP.sub("", context.get_help() + "\n")
    if context.parent and isinstance(context.command, click.Group):
        return text.partition("\nOptions:\n")[0]
    named = ", ".join(each.split()[0] for each in _COMMON.findall(text))
    if not named:
        return text.replace("\nOptions:\n\n", "\n")
    *_, last = _COMMON.finditer(text)
    return _COMMON.sub("", text[: last.start()]) + f"  {named}\n" + text[last.end() :]


def page() -> str:
    """Return the page of all commands."""
    sections = [
        f"## {each.command_path}\n\n```text\n{short_help(each)}```\n"
        for each in contexts(all_commands())
    ]
    return "\n".join([_HEAD, *sections])


def write_man_pages(folder: Path) -> None:
    """Write a man page for each command."""
    from click_man.core import write_man_pages as write  # noqa: PLC0415 - not for the page

    folder.mkdir(parents=True, exist_ok=True)
    release = version("tornado-idv")
    write("tornado-idv", all_commands().command, version=release, target_dir=str(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--man"]:
        write_man_pages(Path(sys.argv[2]))
    else:
        PAGE.write_text(page(), encoding="utf-8")
