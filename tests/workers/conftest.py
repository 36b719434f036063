"""A supervisor whose processes and time are simulated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.supervision import Simulation


@pytest.fixture
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    """A supervisor that has started nothing yet."""
    simulation = Simulation(tmp_path, monkeypatch)
    yield simulation
    simulation.close()


@pytest.fixture
def service(simulation: Simulation) -> Simulation:
    """A service that has served for a while."""
    simulation.advance(10.0)
    return simulation
