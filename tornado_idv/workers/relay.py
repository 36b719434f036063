"""Passes the operator's commands from the admin process to the workers, and their replies back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tornado_idv.admin.report import ReloadResult
from tornado_idv.workers.child import Child
from tornado_idv.workers.control import Message
from tornado_idv.workers.fan_out import FanOut, Replies
from tornado_idv.workers.reload_all import ReloadAll

_TIMEOUT = 5.0
_PURGE_SHARED_TIMEOUT = 2.0
"""Seconds; the workers are asked afterwards in any case."""
_REPORT_TIMEOUT = 0.5
"""Seconds; of a worker that does not reply, the last heartbeat is used."""


def relay(
    admin: Child,
    message: Message,
    workers: Iterable[Child],
    fan_out: FanOut,
    *,
    reloads: ReloadAll,
    overview: Callable[[], Message],
) -> None:
    """Begin a command of the admin process; the reply is sent once the workers have replied.

    ``overview`` returns the state of the service as last reported.
    """
    command, args, timeout = message["command"], message["args"], _TIMEOUT
    reply = {"op": "reply", "id": message["id"]}
    if command == "reload":

        def on_result(result: ReloadResult) -> None:
            admin.send({**reply, "result": result})

        reloads.start("admin", on_result, **args)
        return
    if command == "report":
        # A worker that starts does not reply yet, and has counted nothing.
        workers = [each for each in workers if each.phase != "starting"]
        timeout = _REPORT_TIMEOUT
    elif command in ("explain", "purge_shared"):
        workers = [each for each in workers if each.phase == "ready"][:1]
        timeout = _PURGE_SHARED_TIMEOUT if command == "purge_shared" else _TIMEOUT

    def on_replies(replies: Replies) -> None:
        shown = overview() if command == "report" else None
        admin.send({**reply, "replies": replies, "overview": shown})

    fan_out.send(workers, command, args, timeout, on_replies)
