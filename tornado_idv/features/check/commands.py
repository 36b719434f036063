"""The commands ``tornado-idv check``, ``schema`` and ``plugins``."""

import asyncio
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from logging.handlers import BufferingHandler
from pathlib import Path

import click
from pydantic import SecretStr

from tornado_idv import yaml_loader
from tornado_idv.cli.common import (
    config_option,
    examples,
    exit_on_error,
    failure,
    json_option,
    print_json,
    show,
)
from tornado_idv.config.address import Address
from tornado_idv.config.checks import key_conflicts
from tornado_idv.config.load import ConfigFile, load_without_references
from tornado_idv.config.problems import Steps, dotted
from tornado_idv.config.settings import Settings
from tornado_idv.errors import Broken, ConfigError, IdvError, Problem, SettingError, Untrusted
from tornado_idv.features.check.schema import json_schema
from tornado_idv.features.check.summary import summary
from tornado_idv.interfaces.backend import AnyBackend
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.store import EMPTY, locate_store
from tornado_idv.logs.handlers import keep_out_secrets
from tornado_idv.lookup.canary import KINDS, absent_canaries_of, canaries_of
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import BackendResult, Query, Step
from tornado_idv.registry import (
    build_backend,
    installed_kinds,
    load_class,
    opened_backend,
    plugin_manager,
)
from tornado_idv.service.cpus import worker_count
from tornado_idv.service.sockets import tls_context


@click.command(epilog=examples("check", "check --config-only --json"))
@config_option
@click.option(
    "--config-only",
    is_flag=True,
    help="Check only config.yaml. Open no backend or TLS file; secrets may be missing.",
)
@click.option(
    "--online",
    is_flag=True,
    help="Look up a made-up user in each backend. It must not exist there.",
)
@json_option
def check(config_path: Path, config_only: bool, online: bool, as_json: bool) -> None:  # noqa: FBT001 click's way
    """Report the problems of config.yaml, or a summary of the service.

    If the settings are valid, the command loads the TLS files, opens and closes each backend, and
    looks up its canaries (test users). If the server of a backend is down, the command only warns,
    because the service starts without it. An upstream gets requests only for canaries or with
    --online. Expected results are listed as `confirmed`.

    With --json, `summary` has a list of texts for each label, such as `listens_on` and `backend`.
    """
    if config_only and online:
        raise click.UsageError("--config-only and --online are mutually exclusive")
    keep_out_secrets()
    result = DryRun(config_path, online=online)
    with exit_on_error(Exit.NO, as_json=as_json):
        kinds = installed_kinds(plugin_manager())
        if config_only:
            settings, absent = load_without_references(config_path, kinds, os.environ)
        else:
            file = ConfigFile.read(config_path)
            settings, absent = file.load(kinds, os.environ), []
            result.warn_of_public_files(file, settings)
            asyncio.run(result.run(settings, kinds))
    rows = [("not resolved", f"{each.path}: {each.message}") for each in absent]
    if settings is not None:
        rows = [*summary(settings, datetime.now(UTC), kinds), *result.confirmed, *rows]
        result.warn_of_listeners(settings)
    if as_json:
        by_name: dict[str, list[str]] = {}
        for label, text in rows:
            by_name.setdefault(label.rstrip(" 0123456789").replace(" ", "_"), []).append(text)
        problems = failure(ConfigError(*result.problems))
        record = problems if result.problems else {"ok": True, "summary": by_name}
        print_json({**record, "warnings": [asdict(each) for each in result.warnings]})
    else:
        for each in (*(f"warning: {each}" for each in result.warnings), *result.problems):
            click.echo(str(each), err=True)
        if not result.problems:
            click.echo(f"ok: {click.format_filename(config_path)}\n")
            for label, text in rows:
                click.echo(f"{label:14} {text}")
    sys.exit(Exit.NO if result.problems else Exit.DONE)


@dataclass
class DryRun:
    """A check of the file at ``path``. It collects problems and warnings with their positions."""

    path: Path
    online: bool
    """Whether to look up a made-up user in each backend."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    confirmed: list[tuple[str, str]] = field(default_factory=list)
    """Lines of the summary for successful lookups of canaries and made-up users."""

    async def run(self, settings: Settings, kinds: Kinds) -> None:
        """Load the TLS files and the key store, open each backend, and look up its canaries."""
        with self._problems_at():
            worker_count(settings.server.workers)
        if settings.server.tls is not None:
            with self._problems_at("server", "tls"):
                tls_context(settings.server.tls)
        if settings.auth.store is not None:
            # In a thread: a key store may run its own event loop.
            await asyncio.to_thread(self._try_key_store, settings, settings.auth.store, kinds)
        for i, options in enumerate(settings.backends):
            before = len(self.problems)
            with _logged_warnings() as warnings, self._problems_at("backends", i):
                async with opened_backend(build_backend(kinds, options)) as backend:
                    await self._check_canaries(backend, settings, ("backends", i, "canary"))
                    for query in _made_up_users(settings) if self.online else ():
                        if type(query) in backend.serves:
                            await _check_absent(backend, query)
                            self._confirm(backend, f"a made-up {KINDS[type(query)]} not found")
            for each in warnings:
                self.warn(each.getMessage(), "backends", i)
            if options.shadow is not None:  # only warnings: the service starts without a shadow
                self.warnings += self.problems[before:]
                del self.problems[before:]

    def warn_of_public_files(self, file: ConfigFile, settings: Settings) -> None:
        """Warn of files with secrets that every user of this machine can read."""
        tls = settings.server.tls
        public = {file.path, tls.cert_file} - {tls.key_file} if tls else {file.path}
        for path in sorted({each for each, found in file.signatures.items() if found} - public):
            own, *folders = (each.stat().st_mode for each in (path, *path.resolve().parents))
            if own & 0o004 and all(mode & 0o001 for mode in folders):
                self.warn(f"every user of this machine can read {path}; run chmod o= {path}")

    def warn_of_listeners(self, settings: Settings) -> None:
        """Warn of plain HTTP on a network, and of two listeners with one address."""
        server, admin = settings.server, settings.admin
        if warning := server.warning(server.addresses):
            self.warn(warning, "server", "listen" if server.listen else "host")
        own = admin and Address(admin.host, admin.port)
        if own and own.port and own.url("") in [each.url("") for each in server.addresses]:
            # Only a warning, because a service manager may pass other public sockets.
            self.warn("the public listener has this address, too; change a port", "admin", "port")

    def _confirm(self, backend: AnyBackend, text: str) -> None:
        self.confirmed.append(("confirmed", f"{backend.name}: {text}"))

    def warn(self, message: str, *steps: int | str) -> None:
        self.warnings.append(self._problem(message, steps))

    async def _check_canaries(self, backend: AnyBackend, settings: Settings, steps: Steps) -> None:
        """Look up the canaries of a backend. If its server is down, add only a warning.

        With systemd, ``check`` runs before each reload, and an error would prevent the reload.
        """
        absent = absent_canaries_of(backend.options)
        for name, query in {**canaries_of(backend.options), **absent}.items():
            if type(query) not in backend.serves:
                text = f"{name}: the backend serves no lookups by {KINDS[type(query)]}"
                self.problems.append(self._problem(text, steps))
        guard = Guard(backend, settings.make_identifiers().accepts)
        by_name = {name: each for each in guard.canaries.values() for name in each.queries}
        for name, canary in by_name.items():
            try:
                with _logged_warnings():  # the error has the same text as the warnings
                    await canary.look_up(name)
            except IdvError as error:
                found = self.problems if isinstance(error, Broken | Untrusted) else self.warnings
                found.append(self._problem(str(error), steps))
            else:
                self._confirm(backend, f"{name} {'not found' if name in absent else 'found'}")
        if by_name and not absent:
            await self._warn_of_condition(backend, settings, steps)

    async def _warn_of_condition(
        self, backend: AnyBackend, settings: Settings, steps: Steps
    ) -> None:
        """Warn if ``not_known_when`` reads members that no response contains.

        If a member is misspelt or hidden from this service, the condition has the same result for
        every user. The responses to lookups of a canary and of a made-up user are examined.
        """
        # A canary is served, otherwise `_check_canaries` has looked none up.
        queries = (*canaries_of(backend.options).values(), *_made_up_users(settings))
        served = [each for each in queries if type(each) in backend.serves]
        if missing := await _unread(backend, served[0]):
            of_error = await _unread(backend, served[-1])
            missing = missing if of_error is None else missing & of_error
        if missing:
            text = f"not_known_when reads members that no response has ({', '.join(missing)})"
            self.warn(f"{text}; for a test, name a disabled user as canary.absent", *steps)

    def _try_key_store(self, settings: Settings, setting: Path | SecretStr, kinds: Kinds) -> None:
        with self._problems_at("auth", "store"):
            with (
                closing(locate_store(setting, kinds)) as location,
                location.opened(read_only=True) as store,
            ):
                stored = store.api_keys(EMPTY).keys.values()
                for each in location.warnings():
                    self.warn(each, "auth", "store")
            configured = [each.api_key for each in settings.auth.keys]
            for conflict in key_conflicts(configured, stored, location.name):
                self.problems.append(self._problem(str(conflict), conflict.steps))

    @contextmanager
    def _problems_at(self, *steps: int | str) -> Iterator[None]:
        """Catch an `IdvError`, and report it with the position of a setting in config.yaml.

        The path of the setting is ``error.steps`` for a `SettingError`, otherwise ``steps``.
        """
        try:
            yield
        except ConfigError as error:
            self.problems += (self._problem(each, steps) for each in str(error).splitlines())
        except SettingError as error:
            self.problems.append(self._problem(str(error), error.steps))
        except IdvError as error:
            self.problems.append(self._problem(str(error), steps))

    def _problem(self, message: str, steps: Steps) -> Problem:
        mark = yaml_loader.locate(ConfigFile.read(self.path).tree(), steps)
        return Problem(str(self.path), *mark, dotted(steps), message)


def _made_up_users(settings: Settings) -> Iterator[Query]:
    shortest, longest = settings.identifiers.card_length
    digits = f"{secrets.randbelow(10**longest):0{longest}}"[: max(shortest, 16)]
    for text in (f"@x{secrets.token_hex(8)}", digits):
        with suppress(IdvError):  # identifiers.nickname_pattern may not match the text
            yield settings.make_identifiers().parse_any(text)


async def _unread(backend: AnyBackend, query: Query) -> set[str] | None:
    """Look ``query`` up. Return the members that ``not_known_when`` reads, but no response has.

    If ``not_known_when`` was not evaluated, return ``None``.
    """
    steps: list[Step] = []
    with suppress(IdvError, TimeoutError), _logged_warnings():
        async with asyncio.timeout(backend.options.timeout):
            await backend.explain(query, steps)
    missing = [{*each.missing} for each in steps if each.name == "not_known_when"]
    return set.intersection(*missing) if missing else None


async def _check_absent(backend: AnyBackend, query: Query) -> None:
    """Look up a made-up user. Raises `LookupFailed` unless the result is "not found"."""
    kind = KINDS[type(query)]
    try:
        async with asyncio.timeout(backend.options.timeout):
            result = await backend.find(query)
    except (IdvError, TimeoutError) as error:
        reason = str(error) or f"no answer within {backend.options.timeout:g} s"
        raise Broken(f"a made-up {kind}: {reason}") from None
    if (result.user if isinstance(result, BackendResult) else result) is not None:
        raise Broken(f"a made-up {kind} is found")


@contextmanager
def _logged_warnings() -> Iterator[list[logging.LogRecord]]:
    """While the block runs, collect logged warnings and errors, and write nothing to the log."""
    collector = BufferingHandler(sys.maxsize)
    collector.setLevel(logging.WARNING)
    root = logging.getLogger()
    before, root.handlers = root.handlers, [collector]
    try:
        yield collector.buffer
    finally:
        root.handlers = before


@click.command(epilog=examples("schema > config.schema.json"))
def schema() -> None:
    """Print the JSON Schema of config.yaml.

    It contains the options of the installed plugins. For completion and checks in an editor, write
    "# yaml-language-server: $schema=config.schema.json" as the first line of config.yaml.
    """
    with exit_on_error(Exit.NO):
        click.echo(json.dumps(json_schema(installed_kinds(plugin_manager())), indent=2))


@click.command(epilog=examples("plugins"))
@json_option
def plugins(as_json: bool) -> None:  # noqa: FBT001 click's way
    """List the kinds of backend of the installed plugins."""
    with exit_on_error(Exit.NO, as_json=as_json):
        kinds = installed_kinds(plugin_manager()).backends
        classes = {kind: load_class(kinds[kind]) for kind in sorted(kinds)}
    rows = {kind: each.__module__.partition(".")[0] for kind, each in classes.items()}
    summaries = {kind: (each.__doc__ or "").partition("\n")[0] for kind, each in classes.items()}
    widths = max(map(len, rows), default=0), max(map(len, rows.values()), default=0)
    lines = (
        f"{kind:{widths[0]}}  {module:{widths[1]}}  {summaries[kind]}"
        for kind, module in rows.items()
    )
    show(rows, lines, as_json=as_json)
