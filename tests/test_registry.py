"""Plugins are found or refused, kinds collected, backends opened in order and closed in reverse."""

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from tornado_idv.config.kinds import settings_type
from tornado_idv.errors import DegradedStartError, LookupFailed, StartError, Unavailable
from tornado_idv.interfaces.backend import AnyBackend, Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds, hookimpl
from tornado_idv.model import Answer, ByCard, Query, User
from tornado_idv.registry import (
    build_backend,
    installed_kinds,
    load_class,
    open_backend,
    opened_backend,
    plugin_manager,
)


class Recorder(Backend[BackendOptions]):
    """Records when it is opened and closed, and fails if configured to."""

    def __init__(
        self,
        options: BackendOptions,
        log: list[str] | None = None,
        fails_to_open: BaseException | None = None,
        fails_to_close: Exception | None = None,
    ) -> None:
        super().__init__(options)
        self.log = [] if log is None else log
        self._fails_to_open = fails_to_open
        self._fails_to_close = fails_to_close

    async def open(self) -> None:
        if self._fails_to_open:
            raise self._fails_to_open
        self.log.append(f"open {self.name}")

    async def find(self, query: Query) -> User | None:
        return None

    async def close(self) -> None:
        self.log.append(f"close {self.name}")
        if self._fails_to_close:
            raise self._fails_to_close


class OtherBackend(Recorder):
    """Another kind."""


class Offering:
    def __init__(self, **kinds: type[AnyBackend] | str) -> None:
        self._kinds = kinds

    @hookimpl
    def idv_kinds(self) -> Kinds:
        return Kinds(self._kinds)


def options(name: str, kind: str = "fake") -> BackendOptions:
    return BackendOptions(name=name, kind=kind)


def test_classes_of_installed_plugins_are_found_by_their_entry_points() -> None:
    kinds = installed_kinds(plugin_manager())
    for classes, expected in [
        (kinds.backends, "Ldap Postgres Redis Sqlite Upstream Yaml"),
        (kinds.key_stores, "PostgresKeyStore SqliteKeyStore"),
        (kinds.shared_caches, "RedisSharedCache"),
    ]:
        names = {load_class(each).__name__.removesuffix("Backend") for each in classes.values()}
        assert names == {*expected.split()}


def test_kinds_of_all_plugins_come_in_the_order_of_the_plugins() -> None:
    plugins = [Offering(b=Recorder), Offering(a="no_such_module:Class", c=Recorder)]
    kinds = installed_kinds(plugin_manager(entry_points=False, plugins=plugins))
    assert [*kinds.backends] == ["b", "a", "c"]
    assert [load_class(kinds.backends[name]) for name in "bc"] == [Recorder, Recorder]
    assert (kinds.key_stores, kinds.shared_caches) == ({}, {})


class UnsuitableHooks:
    """Hooks of which each would stop the start."""

    @hookimpl
    async def waits(self, outcome: Answer | LookupFailed) -> None: ...

    @hookimpl(wrapper=True)
    def wraps(self, query: Query) -> Iterator[None]:
        yield

    @hookimpl(hookwrapper=True)
    def wraps_in_the_old_way(self, query: Query) -> Iterator[None]:
        yield

    @hookimpl
    def returns(self, query: Query) -> None: ...

    @hookimpl
    def has_an_old_argument(self, query: Query, answer: Answer) -> None: ...


@pytest.mark.parametrize(
    ("hook", "function", "reported"),
    [
        ("idv_lookup_finished", "waits", "idv_lookup_finished must be a plain function"),
        ("idv_lookup_finished", "wraps", "idv_lookup_finished must not be a wrapper"),
        ("idv_lookup_finished", "wraps_in_the_old_way", "must not be a wrapper"),
        ("idv_identify", "returns", "idv_identify must be a coroutine function (async def)"),
        ("idv_backend_kindz", "returns", "idv_backend_kindz"),
        ("idv_lookup_finished", "has_an_old_argument", "Argument(s) {'answer'} are declared in"),
    ],
)
def test_plugin_with_an_unsuitable_hook_stops_the_start(
    hook: str, function: str, reported: str
) -> None:
    plugin = SimpleNamespace(**{hook: getattr(UnsuitableHooks(), function)})
    with pytest.raises(StartError, match="a plugin cannot be loaded") as caught:
        plugin_manager(entry_points=False, plugins=[Offering(), plugin])
    assert reported in str(caught.value)


SUITABLE = """
from tornado_idv import Kinds, hookimpl

@hookimpl
def idv_kinds():
    return Kinds()
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, module: str) -> None:
    info = folder / "users_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: users-of-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tornado_idv]\n{entry_point}\n")
    (folder / "plugin_of_mine.py").write_text(module)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "plugin_of_mine", raising=False)


@pytest.mark.parametrize(
    ("entry_point", "module", "reported"),
    [
        ("mine = plugin_of_mine:Absent", "", "has no attribute 'Absent'"),
        ("mine = plugin_of_mine", "import no_such_library", "No module named 'no_such_library'"),
        ("mine = plugin_of_mine", "import sys; sys.exit(3)", "it ended the process"),
        ("mine = plugin_of_mine", "def idv_kinds(): return None", "decorate its hooks"),
        ("yaml = plugin_of_mine", SUITABLE, "another plugin has an entry point of this name"),
    ],
)
def test_an_unsuitable_installed_plugin_is_reported_by_package_and_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, module: str, reported: str
) -> None:
    install(tmp_path, monkeypatch, entry_point, module)
    with pytest.raises(StartError) as caught:
        plugin_manager()
    name = entry_point.partition(" ")[0]
    assert f"entry point {name} = " in str(caught.value)
    assert reported in str(caught.value)
    if name == "mine":  # of two with one name, the one that is found later is reported
        assert "users-of-mine" in str(caught.value)
    plugin_manager(entry_points="sqlite")  # loads no other one


def test_one_kind_offered_by_two_plugins_stops_the_start() -> None:
    plugins = [Offering(fake=Recorder), Offering(fake=OtherBackend)]
    manager = plugin_manager(entry_points=False, plugins=plugins)
    with pytest.raises(
        StartError, match=rf'two plugins offer the kind "fake" \(backends\): {__name__} and'
    ):
        installed_kinds(manager)


@pytest.mark.parametrize(("kind", "built"), [("fake", Recorder), ("other", OtherBackend)])
def test_backend_is_built_with_the_class_of_its_kind(kind: str, built: type[AnyBackend]) -> None:
    wanted = options("c", kind)
    backend = build_backend(Kinds({"fake": Recorder, "other": OtherBackend}), wanted)
    assert (type(backend), backend.options) == (built, wanted)


@pytest.mark.parametrize(
    "place", ["no_such_module:Class", "idv_yaml.backend:NoSuchClass", "not a place"]
)
def test_place_without_a_class_is_reported_when_it_is_used(place: str) -> None:
    with pytest.raises(StartError, match="a plugin cannot be loaded"):
        load_class(place)


@pytest.mark.parametrize(
    ("kinds", "reported"),
    [
        (lambda: {"fake": Recorder}, "with a mapping from names to classes in backends"),
        (lambda: Kinds({"fake": Recorder(options("a"))}), "names to classes in backends"),
        (lambda: Kinds(key_stores=None), "names to classes in key_stores"),
        (lambda: {"fake": 1 / 0}, f"ZeroDivisionError in {__file__}, line"),
        (lambda: __import__("no_such_library"), "No module named 'no_such_library'"),
    ],
    ids=["dict", "instance", "none", "error", "import"],
)
def test_kinds_that_cannot_be_read_are_reported(kinds: Callable[[], Any], reported: str) -> None:
    class Unsuitable:
        @hookimpl
        def idv_kinds(self) -> Any:
            return kinds()

    with pytest.raises(StartError, match="a plugin cannot be loaded") as caught:
        installed_kinds(plugin_manager(entry_points=False, plugins=[Unsuitable()]))
    assert reported in str(caught.value)


class Unfinished(Backend[BackendOptions]):
    """Has no ``find``."""


class WithForeignOptions(Recorder):
    options_type = BaseModel  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (Unfinished, "Unfinished does not implement find"),
        (WithForeignOptions, "options_type is a subclass of BackendOptions"),
        (Recorder(options("a")), "must be a class"),
        (BackendOptions, "must be a class whose options_type"),
    ],
    ids=["abstract", "options", "instance", "another class"],
)
def test_a_kind_that_is_no_suitable_class_is_reported(kind: Any, reported: str) -> None:
    with pytest.raises(StartError, match='kind "fake": ') as caught:
        settings_type(Kinds({"fake": kind}))
    assert reported in str(caught.value)


class WithoutArguments(Recorder):
    def __init__(self) -> None: ...


class WithoutBase(Recorder):
    def __init__(self, options: BackendOptions) -> None: ...


class FailsToBuild(Recorder):
    """Raises an error whose message contains a credential."""

    def __init__(self, options: BackendOptions) -> None:
        raise ValueError("s3cret")


class RefusesOptions(Recorder):
    def __init__(self, options: BackendOptions) -> None:
        raise StartError("exclude each other")


@pytest.mark.parametrize(
    ("kind", "reported"),
    [
        (RefusesOptions, r"^exclude each other$"),
        (WithoutArguments, r"cannot be created: .*WithoutArguments\.__init__\(\)"),
        (WithoutBase, r"cannot be created: .*WithoutBase must call super\(\).__init__\(options\)"),
        (FailsToBuild, f"cannot be created: ValueError in {re.escape(__file__)}, line [0-9]+$"),
    ],
    ids=["options", "arguments", "base", "error"],
)
def test_backend_that_cannot_be_created_is_reported(kind: type[AnyBackend], reported: str) -> None:
    with pytest.raises(StartError, match=reported):
        build_backend(Kinds({"fake": kind}), options("a"))


@asynccontextmanager
async def opened_in_order(backends: Sequence[Recorder]) -> AsyncIterator[Sequence[object]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened_backend(each)) for each in backends]


async def test_backends_are_opened_in_order_and_closed_in_reverse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also after one that fails to close. Its error may hold what was asked for."""
    caplog.set_level(logging.DEBUG)
    log: list[str] = []
    errors = (None, KeyError("alice"), None)
    backends = [
        Recorder(options(name), log, fails_to_close=error)
        for name, error in zip("abc", errors, strict=True)
    ]
    async with opened_in_order(backends) as given:
        assert given == backends
        assert log == ["open a", "open b", "open c"]
    assert log[3:] == ["close c", "close b", "close a"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "backend b failed to close" in caplog.text
    assert "KeyError" in caplog.text
    assert "alice" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [StartError("no such file"), Unavailable("locked"), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_when_one_fails_to_open_those_before_it_are_closed(error: BaseException) -> None:
    log: list[str] = []
    backends = [
        Recorder(options("a"), log, fails_to_close=OSError("gone")),
        Recorder(options("b"), log),
        Recorder(options("c"), log, fails_to_open=error),
        Recorder(options("d"), log),
    ]
    with pytest.raises(type(error)) as caught:
        async with opened_in_order(backends):
            log.append("served")
    assert caught.value is error
    assert log == ["open a", "open b", "close b", "close a"]


async def test_backend_that_opens_degraded_stays_open_only_where_that_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    backend = Recorder(options("a"), log, fails_to_open=DegradedStartError("refused"))
    with pytest.raises(DegradedStartError):
        await open_backend(backend)
    assert log == ["close a"]
    await open_backend(backend, may_be_degraded=True)
    assert log == ["close a"]
    assert caplog.messages == ["refused; lookups fail until this is repaired; no restart is needed"]


class CardsOnly(Recorder):
    serves = frozenset({ByCard})


@pytest.mark.parametrize(
    ("canary", "unprotected"),
    [
        (None, []),
        ({"nickname": "@bird"}, ["card_number"]),
        ({"card_number": "9001"}, ["nickname"]),
        ([{"nickname": "@bird"}, {"card_number": "9001"}], []),
    ],
)
async def test_kind_of_query_that_the_canaries_do_not_protect_is_logged(
    caplog: pytest.LogCaptureFixture, canary: object, unprotected: list[str]
) -> None:
    given = BackendOptions.model_validate({"name": "a", "kind": "fake", "canary": canary})
    await open_backend(Recorder(given, []))
    text = 'backend a: its canary has no {0}, so "not found" by {0} is not protected'
    assert caplog.messages == [text.format(member) for member in unprotected]
    await open_backend(CardsOnly(given, []))
    of_cards = [text.format(each) for each in unprotected if each != "nickname"]
    assert caplog.messages[len(unprotected) :] == of_cards


async def test_error_while_opening_is_reported_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its text may hold a credential; the log at its lowest level has the way it came."""
    caplog.set_level(logging.DEBUG)
    secret = "postgres://idv:hunter2@db"
    with pytest.raises(StartError) as caught:
        await open_backend(Recorder(options("b"), fails_to_open=OSError(secret)))
    line = Recorder.open.__code__.co_firstlineno + 2
    assert str(caught.value) == (f"backend b failed to open: OSError in {__file__}, line {line}")
    assert caught.value.__suppress_context__
    assert "in open" in caplog.text
    assert secret not in caplog.text
