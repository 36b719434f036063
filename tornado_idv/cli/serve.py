"""``tornado-idv serve``."""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory

import click
from click.core import ParameterSource

from tornado_idv.cli.common import config_option, example_request, examples, exit_on_error
from tornado_idv.cli.standard_streams import OutputError
from tornado_idv.config.load import ConfigFile
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError, StartError
from tornado_idv.features import FEATURES
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.keys.token import issue
from tornado_idv.kit.files import replaced_file
from tornado_idv.logs.handlers import configure_logging
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.service.cpus import worker_count
from tornado_idv.service.reload import Configuration, Limiters
from tornado_idv.service.run import run
from tornado_idv.service.service import ServiceInfo

_log = logging.getLogger(__name__)
_STANDARD_ERROR = 2
_DEMO_CONFIG = """\
demo: true
profile_sites: [https://profiles.example]
server: {{docs: true, drain: {{timeout: 100ms}}}}
admin: {{port: 0}}
auth: {{keys: [{{id: double, token: {token}}}]}}
backends: [{{name: users, kind: yaml, path: {path}}}]
"""


@click.command(
    epilog=examples(
        "serve --config config.yaml --port 9000",
        "serve --demo users.yaml --port 0 --ready-file ready.json",
    )
)
@config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on, instead of server.port or server.listen; 0 takes any free port.",
)
@click.option(
    "--demo",
    "fixture",
    type=click.Path(path_type=Path, readable=False),
    metavar="USERS",
    help="Serve the users in this file as a test double, with a new key and no configuration file.",
)
@click.option(
    "--ready-fd",
    type=click.IntRange(min=0),
    help="Write addresses, key and process id to this file descriptor, as one line of JSON.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the --ready-fd line to this file.",
)
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="With --demo: stop at the end of standard input, when the parent program exits.",
)
@click.pass_context
def serve(
    context: click.Context,
    *,
    config_path: Path,
    port: int | None,
    fixture: Path | None,
    ready_fd: int | None,
    ready_file: Path | None,
    stop_on_eof: bool,
) -> None:
    """Answer lookups over HTTP until SIGTERM.

    SIGHUP reloads the configuration.

    Exit codes: 0 stopped; 1 the configuration is wrong; 3 a file, a backend or the port cannot
    be opened; 128 plus the signal's number: ended by a second SIGTERM or SIGINT.
    """
    if fixture and context.get_parameter_source("config_path") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--demo and --config are mutually exclusive")
    if stop_on_eof and not fixture:
        raise click.UsageError("--stop-on-eof requires --demo")
    if ready_file is not None:
        with suppress(OSError):  # writing it later reports the error
            _remove_stale(ready_file)
    # Without a handler SIGHUP ends the process. It is blocked before any thread starts, so that all
    # threads inherit this. The service unblocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    with (
        exit_on_error(Exit.UNDETERMINED, other_codes={ConfigError: Exit.NO}),
        _demo_config(fixture, port)
        if fixture
        else nullcontext(ConfigFile.read(config_path, port)) as file,
    ):
        manager = plugin_manager()
        kinds = installed_kinds(manager)
        settings = file.load(kinds, os.environ)
        current = Configuration(file, settings, manager, kinds, Limiters(settings.limits))

        def announce_once(service: ServiceInfo) -> None:
            _try_to_announce(settings, ready_fd, ready_file, service)
            if stop_on_eof:  # not earlier: before this, SIGTERM ends the process without a drain
                threading.Thread(target=_terminate_on_eof, daemon=True).start()

        with file.located():
            if (workers := worker_count(settings.server.workers)) > 1:
                from tornado_idv.workers.supervise import supervise  # noqa: PLC0415 - start-up time

                os.register_at_fork(after_in_child=lambda: _close(ready_fd))  # readers need EOF
                supervise(current, announce_once, workers)
                return
            logging_ = settings.logging
            with closing(configure_logging(logging_.level, logging_.format, logging_.ids)) as logs:
                run(current, announce_once, logs)


@contextmanager
def _demo_config(users: Path, port: int | None) -> Iterator[ConfigFile]:
    """Yield a temporary configuration with the users in the file ``users`` and a new key."""
    with TemporaryDirectory(prefix="tornado-idv-") as folder:
        file = Path(folder) / "config.yaml"
        path = json.dumps(str(users.absolute())).replace("${", "$${")
        file.write_text(_DEMO_CONFIG.format(token=issue("double"), path=path), encoding="utf-8")
        yield ConfigFile.read(file, port)


def _terminate_on_eof() -> None:
    """Wait for the end of standard input, then send SIGTERM to this process."""
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _close(ready_fd: int | None) -> None:
    with suppress(OSError):
        if ready_fd and ready_fd > _STANDARD_ERROR and os.get_inheritable(ready_fd):
            os.close(ready_fd)


def _remove_stale(ready_file: Path) -> None:
    """Remove the ready file of an earlier service. If that service still runs, keep the file."""
    if not ready_file.is_file():
        return
    with suppress(ProcessLookupError, OverflowError, ValueError, KeyError, TypeError):
        pid = json.loads(ready_file.read_bytes())["pid"]
        if pid != os.getpid():  # a restarted container may have the same process id
            os.kill(pid, 0)
            return
    ready_file.unlink()


def _try_to_announce(
    settings: Settings, ready_fd: int | None, ready_file: Path | None, service: ServiceInfo
) -> None:
    """Announce the service on standard output, and to the parent program as a line of JSON.

    If standard output cannot be written, the service continues.
    """
    key, url = _token_to_try(settings), service.url + settings.server.base_path
    record = {"url": url, "admin_url": service.admin_url, "key": key, "pid": os.getpid()}
    if (unix_socket := service.addresses[-1].path) is not None:
        record["unix_socket"] = str(unix_socket)
    line = json.dumps(record) + "\n"
    try:
        if ready_fd is not None:
            if not os.get_inheritable(ready_fd):  # opened by this process, not by its parent
                raise StartError("--ready-fd cannot be written: the parent did not open it")
            with os.fdopen(ready_fd, "w", closefd=ready_fd > _STANDARD_ERROR) as pipe:
                pipe.write(line)
        if ready_file is not None:
            # The file has a key: it must be private. It must be complete when it appears.
            with replaced_file(ready_file) as file:
                file.write(line)
    except OSError as error:
        raise StartError(f"--ready-fd cannot be written: {error.strerror}") from None
    try:
        announce(service, settings)
    except OutputError as error:
        _log.warning("%s; the service continues", error)


def announce(service: ServiceInfo, settings: Settings) -> None:
    """Print the addresses, backends and keys of the service on standard output.

    In demo mode with a valid key in plain text, also print a curl command for a lookup of @alice.
    """
    base_path = settings.server.base_path
    backends = ", ".join(f"{each.name} ({each.kind})" for each in settings.served)
    for each in service.addresses:
        where = str(each) if each.path else each.url(service.scheme) + base_path
        click.echo(f"Listening on {where}")
    if service.admin_url is not None:
        click.echo(f"Admin listener on {service.admin_url}")
    for place in filter(None, (each.announce for each in FEATURES)):
        for line in resolve_name(place)(settings, service):
            click.echo(line)
    click.echo(f"Backends, in order: {backends}")
    click.echo(f"Keys: {service.key_count}")
    if token := _token_to_try(settings):
        command = example_request(service.url + base_path, token, service.addresses[0].path)
        click.echo(f"Demo mode. Try:\n\n{command}\n")


def _token_to_try(settings: Settings) -> str | None:
    """Return the token of a valid key for lookups by nickname, in demo mode only."""
    for key in settings.auth.keys if settings.demo else ():
        may_ask = "identify:url" in key.scopes and key.api_key.is_valid(time.time())
        if key.token is not None and may_ask:
            return key.token.get_secret_value()
    return None
