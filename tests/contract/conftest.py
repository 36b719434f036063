"""One service for each kind of backend, all with the same one user, and one on Tornado's server.

Each response is compared with the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.http.openapi_client import CheckedClient, ResponseChecker, document_for
from support.processes.service import (
    CONFIG,
    Client,
    serving_on_tornado_server,
    serving_sqlite,
    serving_upstream,
    serving_yaml,
)

SERVICES = {"yaml": serving_yaml, "sqlite": serving_sqlite, "upstream": serving_upstream}
TORNADO = "tornado.httpserver"


@pytest.fixture(scope="session", params=[*SERVICES, TORNADO])
def client(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    checker: ResponseChecker,
) -> Iterator[Client]:
    """A client of the service over each kind of backend, and of the application elsewhere."""
    if request.param == TORNADO:
        yield request.getfixturevalue("tornado_client")
        return
    with SERVICES[request.param](tmp_path_factory.mktemp(request.param)) as service:
        yield CheckedClient(service.port, checker)


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> ResponseChecker:
    """The OpenAPI document of these services."""
    config = CONFIG + "  - {name: users, kind: yaml, path: users.yaml}\n"
    return ResponseChecker(document_for(config, tmp_path_factory.mktemp("openapi")))


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory, checker: ResponseChecker) -> Iterator[Client]:
    """A client of one service, for what is the HTTP server's part."""
    with serving_yaml(tmp_path_factory.mktemp("wire")) as service:
        yield CheckedClient(service.port, checker)


@pytest.fixture(scope="session")
def tornado_client(
    tmp_path_factory: pytest.TempPathFactory, checker: ResponseChecker
) -> Iterator[Client]:
    """A client of the application on `tornado.httpserver.HTTPServer`."""
    with serving_on_tornado_server(tmp_path_factory.mktemp("tornado")) as port:
        yield CheckedClient(port, checker)


@pytest.fixture(params=["tornado_idv.http", TORNADO])
def either(request: pytest.FixtureRequest) -> Client:
    """A client of the application on each HTTP server, for what is not the server's part."""
    name = "tornado_client" if request.param == TORNADO else "wire"
    client = request.getfixturevalue(name)
    assert isinstance(client, Client)
    return client
