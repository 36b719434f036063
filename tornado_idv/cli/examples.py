"""Examples in the help of the commands."""

from __future__ import annotations

import click

_EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "tornado-idv init my-directory",
        "tornado-idv serve --config my-directory/config.yaml",
        "tornado-idv COMMAND --help",
    ),
    "cache purge": ("tornado-idv cache purge --nickname @alice",),
    "cache stats": ("tornado-idv cache stats",),
    "check": ("tornado-idv check --config config.yaml", "tornado-idv check --config-only --json"),
    "drill": ("tornado-idv drill -- python my_sync.py --dry-run",),
    "explain": ("tornado-idv explain @alice",),
    "health": ("tornado-idv health && echo ready",),
    "init": ("tornado-idv init my-directory",),
    "keys copy": ("tornado-idv keys copy --from old.yaml --config new.yaml --create",),
    "keys disable": ("tornado-idv keys disable shop",),
    "keys enable": ("tornado-idv keys enable shop",),
    "keys import": ("tornado-idv keys import keys.jsonl",),
    "keys issue": (
        "tornado-idv keys issue shop --create",
        "tornado-idv keys issue shop --scope identify:url --expires 90d --requests 100/second",
    ),
    "keys list": ("tornado-idv keys list", "tornado-idv keys list --json"),
    "keys revoke": ("tornado-idv keys revoke shop",),
    "keys rotate": ("tornado-idv keys rotate shop --overlap 7d",),
    "keys show": ("tornado-idv keys show shop",),
    "ldap try": ("tornado-idv ldap try staff @alice",),
    "lookup": ("tornado-idv lookup @alice", "tornado-idv lookup 4000123412341234 --explain"),
    "openapi": ("tornado-idv openapi > openapi.json",),
    "plugins": ("tornado-idv plugins",),
    "postgres init": ("tornado-idv postgres init | psql", "tornado-idv postgres init --apply"),
    "record": ("tornado-idv record --from crm --queries queries.txt --to users.yaml",),
    "reload": ("tornado-idv check && tornado-idv reload",),
    "schema": ("tornado-idv schema > config.schema.json",),
    "serve": (
        "tornado-idv serve --config config.yaml --port 9000",
        "tornado-idv serve --demo users.yaml --port 0 --ready-file ready.json",
    ),
    "status": ("tornado-idv status", "tornado-idv status --json"),
    "upstream try": ("tornado-idv upstream try crm @alice",),
    "users compare": ("tornado-idv users compare old new --sample 1000",),
    "users count": ("tornado-idv users count --from users",),
    "users export": ("tornado-idv users export --from users users.csv",),
    "users generate": ("tornado-idv users generate --count 1000 > users.csv",),
    "users import": (
        "tornado-idv users import users.csv --to users",
        "tornado-idv users import members.csv --to users --map login=nickname --merge",
    ),
    "verify-fixture": ("tornado-idv verify-fixture users.yaml --from crm",),
}
_COMPLETION = """\b
Completion, for bash (zsh and fish: write that name instead of bash):
  eval "$(_TORNADO_IDV_COMPLETE=bash_source tornado-idv)\""""


def add_examples(command: click.Command, name: str = "") -> None:
    """Add its examples to the help of a command, and to those of its own commands."""
    if name in _EXAMPLES and command.epilog is None:
        lines = "\n".join(f"  {line}" for line in _EXAMPLES[name])
        command.epilog = f"\b\nExamples:\n{lines}"
        if not name:
            command.epilog += f"\n\n{_COMPLETION}"
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            add_examples(each, f"{name} {inner}".strip())
