"""Servers that are started once, and again by the first test after one stopped them."""

from collections.abc import Iterator

import pytest

from support.recipes.peer_process import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers; they end with the session."""
    servers = Servers(tmp_path_factory.mktemp)
    yield servers
    servers.stop_all()
