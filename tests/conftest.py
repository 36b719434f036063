"""What more than one room of tests needs."""

import inspect

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("steady", deadline=None)  # a busy machine is no failure
settings.load_profile("steady")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives every coroutine a loop of its own, which pytest-tornasync does where it is asked."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.fixturenames.append("io_loop")
