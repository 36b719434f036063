"""uvicorn as all its applications are served here."""

from __future__ import annotations

from typing import Any

import uvicorn

from benchmarks.peers.contract import PORT


def serve(app: Any) -> None:
    """Serves with the fast loop and the fast parser, without an access log."""
    uvicorn.run(
        app, port=PORT, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
