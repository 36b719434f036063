"""Servers without sockets."""

from support.http.in_process import make_harness  # noqa: F401
