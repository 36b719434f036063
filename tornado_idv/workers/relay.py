"""Passes the operator's commands from the admin process to the workers, and their replies back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tornado_idv.admin.reload import ReloadResult
from tornado_idv.workers.child import Child
from tornado_idv.workers.control import Message
from tornado_idv.workers.fan_out import FanOut, Replies
from tornado_idv.workers.reload_all import ReloadAll

_TIMEOUT = 5.0
_PURGE_SHARED_TIMEOUT = 2.0
"""Seconds; the workers are asked afterwards in any case."""
_REPORT_TIMEOUT = 0.5
"""Seconds; of a worker that does not reply, the last heartbeat is used."""


class Relay:
    """Serves the commands of the admin process.

    ``workers`` returns all workers; ``overview`` the state of the service as last reported.
    """

    def __init__(
        self,
        workers: Callable[[], Iterable[Child]],
        overview: Callable[[], Message],
        reloads: ReloadAll,
        clock: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._overview = overview
        self._reloads = reloads
        self.fan_out = FanOut(clock)

    def on_command(self, admin: Child, message: Message) -> None:
        """Begin a command; the reply is sent once the workers have replied."""
        command, timeout = message["command"], _TIMEOUT
        if command == "reload":

            def done(result: ReloadResult) -> None:
                admin.send({"op": "reply", "id": message["id"], "result": result})

            self._reloads.start("admin", done, **message["args"])
            return
        workers = list(self._workers())
        if command == "report":
            # A worker that starts does not reply yet, and has counted nothing.
            workers = [each for each in workers if each.phase != "starting"]
            timeout = _REPORT_TIMEOUT
        elif command in ("explain", "purge_shared"):
            workers = [each for each in workers if each.phase == "ready"][:1]
            timeout = _PURGE_SHARED_TIMEOUT if command == "purge_shared" else _TIMEOUT

        def reply(replies: Replies) -> None:
            overview = self._overview() if command == "report" else None
            sent = {"op": "reply", "id": message["id"], "replies": replies, "overview": overview}
            admin.send(sent)

        self.fan_out.send(workers, command, message["args"], timeout, reply)
