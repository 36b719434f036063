"""The connection state of a backend. It decides whether lookups run."""

import asyncio
from enum import Enum

from tornado_idv import LookupFailed, Unavailable


class State(Enum):
    """The states of a backend. The value of each member says what a lookup does in this state."""

    CLOSED = "fails, before `open` and after `close`"
    CONNECTED = "runs"
    SUSPECT = "runs, but an earlier lookup got no response, so a probe of the server is due"
    DOWN = "fails immediately, until an attempt to connect succeeds"


_NEXT = {
    State.CLOSED: {State.CONNECTED, State.DOWN},
    State.CONNECTED: {State.SUSPECT, State.DOWN, State.CLOSED},
    State.SUSPECT: {State.CONNECTED, State.DOWN, State.CLOSED},
    State.DOWN: {State.DOWN, State.CONNECTED, State.CLOSED},  # again, with another error
}


class Availability:
    """The current state of a backend, and the error for lookups while they cannot run.

    .. code-block:: text

                 open             no response
        CLOSED ---------> CONNECTED -------> SUSPECT
          |                ^  |  ^              |  |
          | open   connect |  |  | probe begins |  |
          | fails          |  |  +--------------+  |
          |                |  v  check or probe    |
          +--------------> DOWN <------------------+ fails

    `close` leads from each state to ``CLOSED``.
    """

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.error: LookupFailed | None = Unavailable("the backend is not open")
        self.is_disturbed = asyncio.Event()
        """An event that is set in every state except ``CONNECTED``."""

    def change(self, state: State, error: LookupFailed | None = None) -> None:
        """Enter a state. An impossible change, such as ``DOWN`` to ``SUSPECT``, has no effect."""
        if state not in _NEXT[self.state]:
            return
        self.state, self.error = state, error
        if state is State.CONNECTED:
            self.is_disturbed.clear()
        else:
            self.is_disturbed.set()
