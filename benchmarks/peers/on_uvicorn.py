"""uvicorn with the settings used for every ASGI peer."""

from __future__ import annotations

from typing import Any

import uvicorn

from benchmarks.peers.contract import PORT


def serve(app: Any) -> None:
    """Serve with uvloop and httptools, without an access log."""
    uvicorn.run(
        app, port=PORT, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
