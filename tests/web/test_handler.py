"""The one place where a handler touches what is private to Tornado."""

from __future__ import annotations

from tornado.web import RequestHandler

from tornado_idv.web.handler import JsonHandler


def test_a_cleared_handler_is_what_tornado_s_own_would_be() -> None:
    """But for the headers, which our server writes by itself."""
    theirs, ours = object.__new__(RequestHandler), object.__new__(JsonHandler)
    theirs.clear()
    ours.clear()
    assert set(theirs._headers) == {"Server", "Content-Type", "Date"}
    theirs._headers.clear()
    assert vars(ours) == vars(theirs)
