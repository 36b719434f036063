"""All commands of ``tornado-idv``, which imports them when they are used."""

from collections.abc import Iterator

import click


def commands(group: click.Group, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that are no group, with their names."""
    context = click.Context(group)
    for each in group.list_commands(context):
        found = group.get_command(context, each)
        assert found is not None
        full = f"{name} {each}".strip()
        if isinstance(found, click.Group):
            yield from commands(found, full)
        else:
            yield full, found
