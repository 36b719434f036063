"""What a supervisor does with the socket to a process."""

from __future__ import annotations

import os
import signal
import socket

from tornado_idv.server.child import Child
from tornado_idv.server.control import encode


def test_process_that_closes_with_a_message_unread_is_not_killed() -> None:
    """It is about to end by itself; what it has sent before is received."""
    pid = os.fork()
    if not pid:
        signal.pause()
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    child = Child("worker 1", pid, ours, 0.0)
    try:
        child.send({"op": "do"})
        theirs.sendall(encode({"op": "report"}))
        theirs.close()
        assert child.receive(1.0) == [{"op": "report"}]
        assert child.receive(1.0) == []
        assert child.disconnected
    finally:
        os.kill(pid, signal.SIGUSR1)
        _, status = os.waitpid(pid, 0)
        child.close()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGUSR1, "another signal came before"
