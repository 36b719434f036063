"""Servers for the tests of the HTTP side."""

from collections.abc import Callable, Iterator

import pytest

from support.http.in_process import Harness, harnesses
from support.processes.service import Client, serving_yaml


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service over a fixture file."""
    with serving_yaml(tmp_path_factory.mktemp("wire")) as service:
        yield Client(service.port)


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Harness]]:
    """Yield a function that makes harnesses without sockets; they are closed after the test."""
    with harnesses() as make:
        yield make
