"""Commands that the supervisor has sent to several processes, until all have replied."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from tornado_idv.workers.channel import Message
from tornado_idv.workers.child import Child

Replies = list[Message]
"""Of each process ``name`` and ``pid``, with its ``result``, its ``error``, or ``ended: true``."""


class Command(NamedTuple):
    """A command to several processes, which have ``timeout`` seconds to reply."""

    recipients: list[Child]
    name: str
    args: Message
    timeout: float


Steps = Generator[Command, Any, None]
"""Yields commands one after the other, and gets the `Replies` to each."""


@dataclass
class _Pending:
    """The last command of ``steps``; ``deadline`` is a monotonic time."""

    steps: Steps
    waiting: dict[int, Child]
    deadline: float
    replies: Replies = field(default_factory=list)


class FanOut:
    """Sends commands to processes, and collects their replies.

    A command is complete when the last process has replied or ended, or at its deadline.
    ``children`` are the processes there are; ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.children: list[Child] = []
        self._clock = clock
        self._ids = count(1)
        self._pending: dict[int, _Pending] = {}

    def run(self, steps: Steps, replies: Replies | None = None) -> None:
        """Send the next command of these steps, which get the replies to the one before."""
        waiting: dict[int, Child] = {}
        while not waiting:
            try:
                command = steps.send(replies)
            except StopIteration:
                return
            replies, waiting = [], {each.pid: each for each in command.recipients}
        number = self.send_command(command)
        self._pending[number] = _Pending(steps, waiting, self._clock() + command.timeout)

    def send_command(self, command: Command) -> int:
        """Send a command, and return its number; replies to it are ignored."""
        number = next(self._ids)
        for each in command.recipients:
            each.send({"op": "do", "id": number, "command": command.name, "args": command.args})
        return number

    def on_reply(self, sender: Child, message: Message) -> None:
        """Take the reply of a process; one that comes too late is ignored."""
        outcome: Message = {name: message[name] for name in ("result", "error") if name in message}
        self._settle(message["id"], sender.pid, outcome)

    def on_exit(self, sender: Child) -> None:
        """The process has ended, and replies to nothing any more."""
        self.children.remove(sender)
        for number in tuple(self._pending):
            self._settle(number, sender.pid, {"ended": True})

    def expire(self, now: float) -> None:
        """End what has passed its deadline."""
        for number, pending in tuple(self._pending.items()):
            if pending.deadline <= now:
                for pid in tuple(pending.waiting):
                    self._settle(number, pid, {"error": "no reply in time"})

    @property
    def next_deadline(self) -> float:
        """When `expire` is to be called."""
        return min((each.deadline for each in self._pending.values()), default=math.inf)

    def _settle(self, number: int, pid: int, outcome: Message) -> None:
        pending = self._pending.get(number)
        if pending is not None and (sender := pending.waiting.pop(pid, None)) is not None:
            pending.replies.append({"name": sender.name, "pid": pid, **outcome})
            if not pending.waiting:
                del self._pending[number]
                self.run(pending.steps, pending.replies)
