"""What commands for keys do, as a model: the result of one after the other.

Commands that run at once must have the results of some order, in which each one that was killed
has either happened or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations, product

from tornado_idv.keys.record import KeyRecord


@dataclass(frozen=True)
class ModelKey:
    """The part of a key that commands change."""

    tokens: int = 1
    disabled: bool = False
    revoked: bool = False

    @classmethod
    def of(cls, record: KeyRecord) -> ModelKey:
        return cls(len(record.tokens), record.disabled, record.revoked is not None)


State = Mapping[str, ModelKey]
Command = tuple[str, str]
"""The name of a command, and the id of a key."""


def apply(state: State, command: Command) -> tuple[int, State]:
    """Return the exit code of a command, and the state after it."""
    name, key_id = command
    key = state.get(key_id)
    if name == "issue":
        return (1, state) if key else (0, {**state, key_id: ModelKey()})
    if key is None or (key.revoked and name != "revoke"):
        return 1, state
    changed = {
        "rotate": replace(key, tokens=key.tokens + 1),
        "revoke": replace(key, revoked=True),
        "disable": replace(key, disabled=True),
        "enable": replace(key, disabled=False),
    }
    return 0, {**state, key_id: changed[name]}


def possible_states(state: State, results: list[tuple[Command, int | None]]) -> Iterator[State]:
    """Yield each state in which these commands, at once, can have left the store.

    A result is an exit code, or ``None`` for a command that was killed.
    """
    choices = [(True, False) if code is None else (True,) for _, code in results]
    for order in permutations(range(len(results))):
        for happened in product(*choices):
            after, is_possible = state, True
            for i in order:
                command, code = results[i]
                if happened[i]:
                    modelled, after = apply(after, command)
                    is_possible &= code in (None, modelled)
            if is_possible:
                yield after
