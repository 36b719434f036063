"""What more than one room of tests needs, such as a PostgreSQL server for all tests of a worker."""

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import environment  # noqa: F401, before what reads it
import pytest
from click.testing import CliRunner, Result
from hypothesis import settings
from tornado.ioloop import IOLoop

from support.databases.postgres_server import (
    Database,
    PostgresServer,
    create_database,
    running_server,
)
from support.processes.loggers import put_back
from support.processes.process import Invoke
from tornado_idv.cli import main
from tornado_idv.registry import installed_kinds, plugin_manager

pytest_plugins = ["pytester", "support.speed"]
pytest.register_assert_rewrite(
    "support.databases.user_store_conformance", "support.databases.user_tables"
)

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
# Without a deadline, since a busy machine is no failure.
settings.register_profile("steady", deadline=None, max_examples=EXAMPLES)
_examples = Path(".hypothesis")
if not os.access(_examples if _examples.exists() else Path(), os.W_OK):
    # In a clone of another user Hypothesis would warn that it keeps no failing example.
    settings.register_profile("steady", settings.get_profile("steady"), database=None)
settings.load_profile("steady")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which a test was skipped, where every tool is installed (``NO_SKIPS``)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "NO_SKIPS" in os.environ and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test as in a terminal: after ``&`` in a script or nohup, signals are ignored."""
    handle_signals()


def handle_signals() -> None:
    """Handle signals as a new process does; a command that has made a change ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # `serve` blocks it for its start
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Processes that tests start do not inherit a handler; that of nohup stays effective here.
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives every coroutine a loop of its own, which pytest-tornasync does where it is asked."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.fixturenames.append("io_loop")


@pytest.fixture
def io_loop() -> Iterator[IOLoop]:
    """As pytest-tornasync has it, but nothing of it is left for the collector to complain of.

    Its own makes the loop the current one, so that asyncio creates another that is
    never closed; and tasks that a test left running would be reported in a later test.
    """
    loop = IOLoop(make_current=False)
    yield loop
    loop.run_sync(_end_other_tasks)
    # The collector finds an error that no task retrieved: during a later test, which reads the log.
    loop.asyncio_loop.set_exception_handler(lambda *_: None)  # type: ignore[attr-defined]
    _join_database_threads()
    loop.close(all_fds=True)


async def _end_other_tasks() -> None:
    """End all tasks, also those that others start at their end, as for a canary."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


def _join_database_threads() -> None:
    """Waits for threads of aiosqlite that are ending; each reports to the loop last of all.

    After a failure to connect it does not wait for them itself.
    """
    for thread in threading.enumerate():
        if thread.name.endswith("(_connection_worker_thread)"):
            thread.join(timeout=5)


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """Runs one command; whatever is no exit escapes, so that no test takes a crash for a 1.

    What a command does to the loggers and signals of this process is undone.
    """

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        texts = [str(each) for each in arguments]
        try:
            return CliRunner().invoke(main, texts, input=stdin, catch_exceptions=False)
        finally:
            if threading.current_thread() is threading.main_thread():
                handle_signals()

    installed_kinds(plugin_manager())  # plugins set levels when they are imported, which stay
    with put_back():
        yield run


@pytest.fixture(autouse=True, scope="session")
def the_collector_stays_as_it_is() -> Iterator[None]:
    """A service that runs in this process settles the collector; tests are no service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tornado_idv.service.run.tune_gc", lambda: None)
        patch.setattr("tornado_idv.service.run.skip_last_collection", lambda: None)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    with closing(
        create_database(postgres_server, request.module.__name__.rpartition(".")[2])
    ) as created:
        yield created
