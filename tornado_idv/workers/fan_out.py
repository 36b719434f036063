"""Commands that the supervisor has sent to several processes, until all have replied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from tornado_idv.workers.child import Child
from tornado_idv.workers.control import Message

Replies = list[Message]
"""Of each process ``name`` and ``pid``, with its ``result``, its ``error``, or ``ended: true``."""


@dataclass
class _Pending:
    """A command; ``deadline`` is a monotonic time."""

    waiting: dict[int, Child]
    deadline: float
    done: Callable[[Replies], object]
    replies: Replies = field(default_factory=list)


class FanOut:
    """Sends a command to several processes, and collects their replies.

    ``done`` is called once with all of them: when the last has replied or ended, or at the
    deadline. ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ids = count(1)
        self._pending: dict[int, _Pending] = {}

    def send(
        self,
        recipients: Iterable[Child],
        command: str,
        args: Message,
        timeout: float,
        done: Callable[[Replies], object],
    ) -> None:
        """Send a command to all recipients."""
        number = next(self._ids)
        waiting = {each.pid: each for each in recipients}
        self._pending[number] = _Pending(waiting, self._clock() + timeout, done)
        for each in tuple(waiting.values()):
            each.send({"op": "do", "id": number, "command": command, "args": args})
        self._finish_if_complete(number)

    def on_reply(self, sender: Child, message: Message) -> None:
        """Take the reply of a process; one that comes too late is ignored."""
        outcome: Message = {name: message[name] for name in ("result", "error") if name in message}
        self._settle(message["id"], sender.pid, outcome)

    def on_exit(self, sender: Child) -> None:
        """The process has ended, and replies to nothing any more."""
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
        if pending is None or (sender := pending.waiting.pop(pid, None)) is None:
            return
        pending.replies.append({"name": sender.name, "pid": pid, **outcome})
        self._finish_if_complete(number)

    def _finish_if_complete(self, number: int) -> None:
        if not self._pending[number].waiting:
            pending = self._pending.pop(number)
            pending.done(pending.replies)
