"""What the tests of all plugins share."""

import pytest


@pytest.fixture(autouse=True)
def time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to connect than an upstream may; tests of it set less."""
    monkeypatch.setattr("idv_upstream.transport.client.CONNECT_TIMEOUT", 4.0)
