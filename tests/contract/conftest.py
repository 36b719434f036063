"""One service for each kind of backend, all with the same one user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.service import Client, serving_sqlite, serving_upstream, serving_yaml

SERVICES = {"yaml": serving_yaml, "sqlite": serving_sqlite, "upstream": serving_upstream}


@pytest.fixture(scope="session", params=SERVICES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A client of the service over each kind of backend in turn."""
    with SERVICES[request.param](tmp_path_factory.mktemp(request.param)) as service:
        yield Client(service.port)


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of one service, for what no backend has a part in."""
    with serving_yaml(tmp_path_factory.mktemp("wire")) as service:
        yield Client(service.port)
