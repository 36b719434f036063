"""A process with everything imported, which forks a command each time it is asked for one.

A command that is forked from it begins at once; a new interpreter imports for a second. So
does any other module that imports what commands do. `support.processes.forking` runs this script,
so that no module of the tests is in it.
"""

import fcntl
import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
import pkgutil
import resource
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

MAX_REQUEST = 256 * 1024
"""Bytes, of which the environment takes most."""
_MAX_SOCKETS = 8
_UNUSED = 100
"""A descriptor above those that a process has at its start."""


def import_all() -> None:
    """Import what commands import when they run, plugins included, and make what each makes.

    The model of the settings is kept for four sets of kinds of backends.
    """
    registry = importlib.import_module("tornado_idv.registry")
    manager = registry.plugin_manager()
    plugins = [each.__name__ for each in manager.get_plugins()]
    packages = ("tornado_idv.cli", "tornado_idv.features", "tornado_idv.workers", *plugins)
    for package in packages:
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            with suppress(ModuleNotFoundError):  # python-ldap may not be installed
                importlib.import_module(each.name)
    importlib.import_module("uvloop")
    settings_type = importlib.import_module("tornado_idv.config.kinds").settings_type
    for kind in ("postgres", "upstream", "sqlite", "yaml"):
        model = settings_type(registry.installed_kinds(manager), {kind})
        assert model.__pydantic_complete__


class _Remembered(importlib.metadata.PathDistribution):
    """An installed package whose metadata are parsed once."""

    metadata = cached_property(importlib.metadata.PathDistribution.metadata.fget)
    entry_points = cached_property(importlib.metadata.PathDistribution.entry_points.fget)


def remember_installed_plugins() -> None:
    """Search for plugins once in the folders that are on the path now, for it takes 12 ms."""
    group, search = "tornado_idv", importlib.metadata.distributions
    known = {
        folder: [each for each in search(path=[folder]) if each.entry_points.select(group=group)]
        for folder in sys.path
    }
    for each in itertools.chain.from_iterable(known.values()):
        if type(each) is importlib.metadata.PathDistribution:
            each.__class__ = _Remembered

    def distributions() -> Iterator[importlib.metadata.Distribution]:
        for folder in sys.path:
            yield from known[folder] if folder in known else search(path=[folder])

    importlib.metadata.distributions = distributions  # type: ignore[assignment]


def next_command(listener: socket.socket) -> dict[str, Any]:
    """Fork commands and report their ends; return, in each forked process, its request.

    Exits when the last client is gone.
    """
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    clients = 0
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fd)
                _report(key.fd, *key.data)
                continue
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                clients += 1
                continue
            requests = cast("socket.socket", key.fileobj)
            message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 3 + _MAX_SOCKETS)
            if not message:
                selector.unregister(requests)
                requests.close()
                clients -= 1
                if not clients:
                    sys.exit()
                continue
            channel, *passed = descriptors
            process = os.fork()
            if not process:
                _close_all(selector)
                os.close(channel)
                request: dict[str, Any] = json.loads(message)
                _use_streams(*passed[:2], request["closed"])
                _use_sockets(passed[2:])
                return request
            for each in passed:
                os.close(each)
            # With it the client can watch the process, even one that has ended by then.
            watch = os.pidfd_open(process)
            with socket.socket(fileno=os.dup(channel)) as client:
                socket.send_fds(client, [b"%d" % process], [watch])
            selector.register(watch, selectors.EVENT_READ, (process, channel))


def _report(watch: int, process: int, channel: int) -> None:
    os.close(watch)
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError):  # the client did not wait for it
        os.write(channel, b"%d" % code)
    os.close(channel)


def _close_all(selector: selectors.BaseSelector) -> None:
    """Close what belongs to the server."""
    for key in list(selector.get_map().values()):
        if key.data is None:
            key.fileobj.close()  # type: ignore[union-attr]
        else:
            os.close(key.fd)
            os.close(key.data[1])
    selector.close()


def _use_streams(stdout: int, stderr: int, closed: Sequence[int]) -> None:
    """Set up the standard streams; closed ones are absent, as at the start of an interpreter."""
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number in closed:
        os.close(number)
        name = ("stdin", "stdout", "stderr")[number]
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)


def _use_sockets(sockets: Sequence[int]) -> None:
    """Set up sockets that a service manager passes, from descriptor 3 on."""
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD, _UNUSED) for each in sockets]
    for each in sockets:
        os.close(each)
    for number, each in enumerate(copies, 3):
        os.dup2(each, number)
        os.close(each)


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def become(request: dict[str, Any]) -> None:
    """Take the state that a new process would have of its parent and its command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_NOFILE, request["descriptors"])
    os.chdir(request["folder"])
    before = _python_path()
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("LISTEN_PID") == "$$":  # as in a shell
        os.environ["LISTEN_PID"] = str(os.getpid())
    time.tzset()
    installed = [path for path in sys.path[1:] if path not in before]
    sys.path[:] = [request["folder"], *_python_path(), *installed]
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(request["module"])
    assert spec is not None
    assert spec.origin is not None
    sys.argv = [spec.origin.replace("__init__.py", "__main__.py"), *request["arguments"]]


def run(descriptor: int) -> None:
    """Serve requests on a listening socket, and run the commands, each in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    remember_installed_plugins()
    import_all()
    gc.collect()
    gc.freeze()
    request = next_command(socket.socket(fileno=descriptor))
    become(request)
    try:
        runpy.run_module(request["module"], run_name="__main__")
    except SystemExit as end:
        _exit(end.code)
        raise


def _exit(code: object) -> None:
    """End the process without the finalization of the interpreter, which takes 50 ms.

    Returns where finalization matters: it prints a message, waits for threads, or fails to flush.
    """
    has_threads = any(not each.daemon for each in threading.enumerate()[1:])
    if has_threads or not (code is None or isinstance(code, int)):
        return
    logging.shutdown()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        return
    os._exit(code or 0)


if __name__ == "__main__":
    run(int(sys.argv[1]))
