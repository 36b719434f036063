"""Commands at once, some of them killed: the store is always that of some order of them.

No printed token of a command that succeeded is ever lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.databases.key_model import Command, ModelKey, State, possible_states
from support.databases.key_stores import make_store, read
from support.processes.forked_commands import LoggedCommand, start
from tornado_idv.keys.record import KeyRecord
from tornado_idv.keys.token import check_token, digest

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "8"))
KILLED = -9

COMMANDS = st.tuples(
    st.sampled_from(["issue", "issue", "rotate", "rotate", "revoke", "disable", "enable"]),
    st.sampled_from("ab"),
)
# A command takes 40 ms on a quiet machine, and 100 ms on a busy one.
DELAYS = st.one_of(st.none(), st.floats(0.0, 0.12))
ROUNDS = st.lists(st.lists(st.tuples(COMMANDS, DELAYS), min_size=1, max_size=3), max_size=4)


@given(ROUNDS)
@example([[(("issue", "a"), None)] * 3, [(("rotate", "a"), None), (("revoke", "a"), None)]])
@example([[(("issue", "a"), i / 100)] for i in range(12)])
@settings(max_examples=EXAMPLES)
def test_store_is_that_of_some_order_of_the_commands(
    rounds: list[list[tuple[Command, float | None]]],
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "keys.db"
        make_store(store)
        state: State = {}
        printed: dict[str, str] = {}
        for each in rounds:
            results = []
            for command, done in run_at_once(folder, store, each):
                results.append((command, None if done.wait() == KILLED else done.wait()))
                if (text := done.stdout) and done.wait() == 0:
                    printed[whole_token(text)] = command[1]
            records = read(store)
            possible = list(possible_states(state, results))
            state = {key_id: ModelKey.of(record) for key_id, record in records.items()}
            assert state in possible
            check_printed(printed, records)


def run_at_once(
    folder: Path, store: Path, commands: list[tuple[Command, float | None]]
) -> list[tuple[Command, LoggedCommand]]:
    """Start commands and kill each after its delay, if it has one."""
    started = time.monotonic()
    running = [
        (command, start(folder / "logs", "keys", *command, "--store", store))
        for command, _ in commands
    ]
    delays = [delay for _, delay in commands]
    for delay, (_, process) in sorted(
        ((delay, each) for delay, each in zip(delays, running, strict=True) if delay is not None),
        key=lambda pair: pair[0],
    ):
        time.sleep(max(0.0, started + delay - time.monotonic()))
        process.kill()
    return running


def whole_token(output: str) -> str:
    """Return the token that a command printed; nothing else, and no part of it, may be there."""
    token = output.removesuffix("\n")
    assert output == f"{token}\n"
    check_token(token)
    return token


def check_printed(printed: dict[str, str], records: dict[str, KeyRecord]) -> None:
    for token, key_id in printed.items():
        assert digest(token) in {each.digest for each in records[key_id].tokens}
