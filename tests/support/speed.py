"""Make a run of all tests faster, and nothing else: without this plugin the same tests pass."""

import gc
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.fork_server import remember_installed_plugins


def pytest_configure(config: pytest.Config) -> None:
    """Make each worker begin with other modules, for in a fresh clone they are compiled first.

    All together they would compile each module as many times as there are workers.
    """
    gc.disable()  # while tests are collected, all of which stay
    worker = getattr(config, "workerinput", None)
    if worker is not None and len(config.args) == 1 and Path(config.args[0]).is_dir():
        modules = sorted(map(str, Path(config.args[0]).rglob("test_*.py")))
        start = int(worker["workerid"].removeprefix("gw")) * len(modules) // worker["workercount"]
        config.args = modules[start:] + modules[:start]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests into one order in all workers; modules that wait for processes begin first.

    The others, which wait for nothing, then fill the time until the last of those ends.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path))


def pytest_collection_finish() -> None:
    """Leave the thousands of tests out of garbage collections, which took 10 % of the time."""
    gc.freeze()
    gc.set_threshold(20_000)  # the default of 700 took another 4 %
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def installed_plugins_are_searched_once() -> Iterator[None]:
    """Hundreds of tests run a command; that a new interpreter finds plugins is tested, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "distributions", importlib.metadata.distributions)
        remember_installed_plugins()
        yield
