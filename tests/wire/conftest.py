"""The tests of the wire play the tables of the contract too."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inprocess import Ground, grounds
from serving import Client, serving_yaml

sys.path.append(str(Path(__file__).parents[1] / "contract"))


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service over a fixture file."""
    with serving_yaml(tmp_path_factory.mktemp("wire")) as service:
        yield Client(service.port)


@pytest.fixture
def make_ground() -> Iterator[Callable[..., Ground]]:
    """Makes the application on listeners without sockets; they are closed after the test."""
    with grounds() as make:
        yield make
