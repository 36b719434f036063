"""Servers for the tests of the HTTP side."""

from collections.abc import Callable, Iterator

import pytest

from support.http.in_process import Harness, harnesses


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Harness]]:
    """Yield a function that makes harnesses without sockets; they are closed after the test."""
    with harnesses() as make:
        yield make
