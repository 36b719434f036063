"""``tornado-idv keys``: issue, rotate, revoke, disable, enable, list and show."""

import itertools
import json
import math
import os
import pwd
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
from click.testing import Result

from idv_sqlite.key_store import SqliteKeyStore
from support.databases.key_stores import add, execute, make_store, open_store, read, record
from support.processes.process import BROKEN, CLOSED, Invoke, command, on_terminal
from tornado_idv.errors import KeyStoreError, UncertainChangeError
from tornado_idv.features.keys.editor import KeyEditor, KeyRecord, Token
from tornado_idv.features.keys.store import format_moment
from tornado_idv.keys.token import check_token, digest
from tornado_idv.keys.token import issue as new_token
from tornado_idv.units import Rate

USERS = "name: users, kind: yaml, path: users.yaml"
DAY = 86400.0
NOW = datetime(2026, 11, 22, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture
def run(invoke: Invoke, path: Path) -> Callable[..., Result]:
    """Runs one of the commands on the store at ``path``."""
    return lambda *arguments: invoke("keys", *arguments, "--store", path)


Run = Callable[..., Result]
Config = Callable[..., Path]


def test_key_is_revoked_while_a_plugin_cannot_be_loaded(
    run: Run, invoke: Invoke, config: Config, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that has loaded it still runs, and accepts the key."""
    make_store(path, "shop", "demo")
    monkeypatch.setitem(sys.modules, "idv_yaml", None)
    assert run("revoke", "shop").exit_code == 0
    file = config(USERS, more=f"auth: {{store: {path}}}\n")
    assert invoke("keys", "revoke", "demo", "--config", file).exit_code == 0
    assert all(each.revoked for each in read(path).values())


def test_token_is_printed_once_and_alone(run: Run, path: Path) -> None:
    result = run("issue", "shop", "--create")
    assert result.exit_code == 0
    token = result.stdout.removesuffix("\n")
    check_token(token)
    assert token.startswith("idv_shop_")
    assert result.stderr == f"Created the key store {path}.\n"
    assert run("issue", "other", "--create").stderr == ""
    shop = read(path)["shop"]
    assert [each.digest for each in shop.tokens] == [digest(token)]
    assert shop.scopes == ("identify:url", "identify:card")
    assert token.encode() not in path.read_bytes()


def test_every_option_of_issue_is_stored(run: Run, path: Path) -> None:
    options = ["--owner", "web shop", "--note", "ü" * 200, "--scope", "admin", "--scope"]
    options += ["identify:url", "--expires", "90d", "--not-before", "2026-12-01"]
    options += ["--requests", "100/second", "--misses", "300/10 minutes"]
    assert run("issue", "shop", "--create", *options).exit_code == 0
    shop = read(path)["shop"]
    assert (shop.owner, shop.note, shop.created) == ("web shop", "ü" * 200, NOW)
    assert shop.scopes == ("admin", "identify:url")
    assert (shop.not_before, shop.expires) == (NOW + 9 * DAY, NOW + 90 * DAY)
    assert (shop.requests, shop.misses) == (Rate(100, 1), Rate(300, 600))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1.5h", NOW + 5400),
        ("2027-01-01", NOW + 40 * DAY),
        ("2027-01-01T02:00:00+02:00", NOW + 40 * DAY),
        ("9998-12-31T23:59:59Z", datetime(9999, 1, 1, tzinfo=UTC).timestamp() - 1),
    ],
)
def test_point_in_time_is_duration_or_date(run: Run, path: Path, text: str, moment: float) -> None:
    run("issue", "shop", "--create", "--expires", text, "--not-before", "1970-01-01")
    assert (read(path)["shop"].not_before, read(path)["shop"].expires) == (0, moment)


NO_DATE = "neither a duration nor a date; write it like 90d, 2027-01-01 or 2027-01-01T00:00:00Z"
NO_DURATION = "not a duration; write a number and ms, s, m, h or d, like 30s"
NO_RATE = "not a rate; write a number, / and a period, like 100/second or 300/10 minutes"
NO_ID = "not the id of a key: 1 to 64 letters, digits, . and - are needed"
NO_TIME = "must be a time from 1970 on and before the year 9999"
NOT_AFTER = "--expires: must be in the future, and after --not-before"
NO_ZONE = "--expires: the time zone is missing; add Z for UTC"
NO_TEXT = "must be at most 200 printable characters"
NO_KEY = "{}: there is no key with this id"
REFUSED = [
    *((["issue", "x", "--expires", text], f"--expires: {NO_DATE}") for text in ("tomorrow", "")),
    (["issue", "x", "--expires", "2027-01-01T00:00:00"], NO_ZONE),
    (["issue", "x", "--not-before", "1969-12-31T23:59:59Z"], f"--not-before: {NO_TIME}"),
    (["issue", "x", "--expires", "9999-01-01"], f"--expires: {NO_TIME}"),
    (["issue", "x", "--expires", "2026-11-22"], NOT_AFTER),
    (["issue", "x", "--expires", "1d", "--not-before", "2d"], NOT_AFTER),
    (["issue", "x", "--expires", "2026-01-01", "--not-before", "2025-01-01"], NOT_AFTER),
    (["issue", "x", "--requests", "100"], f"--requests: {NO_RATE}"),
    (["issue", "a_b"], NO_ID),
    (["show", new_token("x")], NO_ID),
    (["issue", "x", "--owner", "a\nb"], f"--owner: {NO_TEXT}"),
    (["issue", "x", "--note", "a" * 201], f"--note: {NO_TEXT}"),
    (["issue", "shop"], "the key shop exists already"),
    (["issue", "gone"], "the key gone was revoked; its id cannot be used again"),
    (["rotate", "shop", "--overlap", "soon"], f"--overlap: {NO_DURATION}"),
    (["rotate", "shop", "--overlap", "10000000d"], f"--overlap: {NO_TIME}"),
    (["rotate", "early", "--expires", "10d"], "--expires: must be after not_before of early"),
    (["rotate", "old"], "old has expired; renew it with --expires"),
    (["rotate", "shop", "--expires", "2026-01-01"], NOT_AFTER),
    (["enable", "gone"], "gone was revoked permanently"),
    (["rotate", "gone"], "gone was revoked; issue a key with another id"),
    *(([name, "none"], NO_KEY) for name in ("rotate", "revoke", "disable", "enable", "show")),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_command_that_is_refused_is_explained(
    run: Run, path: Path, arguments: list[str], message: str
) -> None:
    make_store(path, "shop")
    early = record("early", "early", not_before=NOW + 30 * DAY)
    add(path, early, record("gone", "gone", revoked=NOW), record("old", "old", expires=NOW))
    known, message = read(path), message.format(path)
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{message}\n")
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert json.loads(result.stdout)["problems"][0]["message"] == message
    assert read(path) == known


def test_missing_store_is_explained(run: Run, path: Path) -> None:
    for name in ("issue", "rotate", "revoke", "disable", "enable", "show"):
        result = run(name, "shop")
        assert (result.exit_code, "there is no key store" in result.stderr) == (1, True)
    with patch.object(SqliteKeyStore, "require_one_server", side_effect=KeyStoreError("two")):
        assert run("issue", "shop", "--create").stderr == "two\n"
    assert not path.exists()


def test_command_has_one_time(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a key that is never valid would be issued, and states in a list would differ."""
    seconds = itertools.count(NOW)
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    result = run("issue", "shop", "--create", "--not-before", "90d", "--expires", "90d")
    assert (result.exit_code, result.stderr) == (1, f"{NOT_AFTER}\n")
    assert not path.exists()
    make_store(path)
    add(path, *(record(f"key{i}", f"key{i}", expires=NOW + 30) for i in range(60)))
    listed = json.loads(run("list", "--json").stdout)
    assert {each["state"] for each in listed} == {"valid"}


@pytest.mark.parametrize(("options", "seconds"), [((), DAY), (("--overlap", "1h"), 3600.0)])
def test_rotated_key_has_another_token_beside_the_old_one(
    run: Run, path: Path, options: tuple[str, ...], seconds: float
) -> None:
    make_store(path, "shop")
    result = run("rotate", "shop", *options)
    old, new = sorted(read(path)["shop"].tokens, key=lambda token: token.expires is None)
    assert result.exit_code == 0
    assert new.digest == digest(result.stdout.removesuffix("\n"))
    assert old.expires == NOW + seconds
    run("disable", "shop")
    assert "shop is disabled" in run("rotate", "shop").stderr


@pytest.mark.parametrize(
    ("moment", "year"), [(1e15, 9999), (-1e15, 1970), (1e300, 9999), (math.nan, 1970)]
)
def test_any_time_in_a_store_can_be_printed(moment: float, year: int) -> None:
    """PostgreSQL stores NaN, if someone writes it there."""
    assert format_moment(moment) == f"{year}-01-01T00:00:00Z"


def test_link_without_a_store_is_explained(run: Run, path: Path) -> None:
    path.symlink_to("nowhere.db")
    result = run("issue", "shop", "--create")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path}: the target of the symbolic link is missing" in result.stderr


def test_expired_key_is_renewed_by_a_rotation(run: Run, path: Path) -> None:
    make_store(path)
    add(path, record("old", "old", expires=NOW))
    assert run("rotate", "old", "--expires", "90d").exit_code == 0
    assert read(path)["old"].state(NOW) == "valid"


def test_key_is_disabled_enabled_and_revoked(run: Run, path: Path) -> None:
    make_store(path, "shop")
    for name, state in [("disable", "disabled"), ("enable", "valid"), ("revoke", "revoked")]:
        result = run(name, "shop")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"shop: {state}\n")
        assert read(path)["shop"].state(NOW) == state
        if name != "enable":
            assert json.loads(run(name, "shop", "--json").stdout)["state"] == state
            result = run(name, "shop")
            assert (result.exit_code, result.stderr) == (0, f"shop: {state}; nothing was changed\n")


@pytest.mark.parametrize("command", [("issue", "other"), ("revoke", "shop")], ids=" ".join)
def test_change_that_no_service_can_read_is_made_and_reported(
    run: Run, path: Path, command: tuple[str, str]
) -> None:
    """Not as done: a revoked key stays in force until the store is repaired."""
    make_store(path, "shop")
    add(path, record("bad", "bad"))
    before = read(path)
    execute(path, "UPDATE keys SET scopes = 'everything' WHERE id = 'bad'")
    result = run(*command)
    execute(path, "UPDATE keys SET scopes = 'identify:url' WHERE id = 'bad'")
    assert result.exit_code == 3
    assert result.stderr.startswith(
        f"{path}: a key in it is not valid: bad; the change was made, but has no effect until"
    )
    assert read(path) != before
    with patch.object(KeyEditor, "api_keys", side_effect=KeyStoreError("the file is locked")):
        assert run("issue", "another").exit_code == 0


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], ["early", "gone", "new", "off", "old", "over", "used"]),
        (["--owner", "web"], ["old", "used"]),
        (["--unused", "90d"], ["old"]),
        (["--unused", "20d"], ["old", "over"]),
        (["--expiring", "14d"], ["new"]),
        (["--expiring", "6d"], []),
        (["--unused", "5d", "--owner", "web"], ["old", "used"]),
    ],
    ids=" ".join,
)
def test_keys_are_listed(run: Run, path: Path, options: list[str], ids: list[str]) -> None:
    make_store(path)
    keys = [
        record("old", "old", NOW - 100 * DAY, owner="web"),
        record("used", "used", NOW - 100 * DAY, owner="web"),
        record("new", "new", NOW, expires=NOW + 7 * DAY, note="a note"),
        record("early", "early", NOW, not_before=NOW + 1, expires=NOW + DAY),
        record("gone", "gone", NOW - 100 * DAY, revoked=NOW - 1),
        record("over", "over", NOW - 100 * DAY, expires=NOW),
        record("off", "off", NOW, disabled=True, expires=NOW + DAY),
    ]
    add(path, *keys)
    with open_store(path) as store:
        store.write_last_used({"used": NOW - 10 * DAY, "over": NOW - 50 * DAY})
    result = run("list", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.findall(r"^\w+", result.stdout, re.MULTILINE)[1:] == ids
    result = run("list", *options, "--json")
    assert [each["id"] for each in json.loads(result.stdout)] == ids


def test_list_fits_a_terminal_without_empty_columns(run: Run, path: Path) -> None:
    """Other cells are folded, an id never."""
    make_store(path)
    long = f"shop-{'x' * 40}"
    add(path, record(long, "a", NOW, owner="team of the shop"), record("b", "b", NOW))
    head, first, *_ = run("list", "--owner", "").stdout.splitlines()
    assert head.split() == ["id", "state", "scopes"]
    assert first == "b   valid  identify:url identify:card"
    add(path, record("c", "c", NOW, expires=NOW + DAY, note=f"see https://{'q' * 60}"))
    with open_store(path) as store:
        store.write_last_used({"b": NOW})
    head, *lines = run("list", "--owner", "").stdout.splitlines()
    assert head.split() == ["id", "state", "scopes", "expires", "last_used", "note"]
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("q") == 60
    assert sum(long in line for line in run("list").stdout.splitlines()) == 1


def test_every_attribute_of_a_key_is_shown(run: Run, path: Path) -> None:
    make_store(path)
    tokens = (Token(digest("a"), NOW, NOW + 60), Token(digest("b"), NOW + 1))
    shop = KeyRecord(
        "shop",
        NOW,
        tokens,
        "web shop",
        ("admin",),
        not_before=NOW + 2,
        expires=NOW + 3,
        requests=Rate(100, 1),
        note="old",
        revoked=NOW + 4,
    )
    add(path, shop, record("other", "c", NOW, misses=Rate(300, 600), disabled=True))
    with open_store(path) as store:
        store.write_last_used({"shop": NOW + 5})
    assert json.loads(run("show", "shop", "--json").stdout) == {
        "id": "shop",
        "state": "revoked",
        "owner": "web shop",
        "scopes": ["admin"],
        "not_before": "2026-11-22T00:00:02Z",
        "expires": "2026-11-22T00:00:03Z",
        "requests": "100/second",
        "misses": None,
        "note": "old",
        "disabled": False,
        "revoked": "2026-11-22T00:00:04Z",
        "created": "2026-11-22T00:00:00Z",
        "last_used": "2026-11-22T00:00:05Z",
        "tokens": [
            {"created": "2026-11-22T00:00:00Z", "expires": "2026-11-22T00:01:00Z"},
            {"created": "2026-11-22T00:00:01Z", "expires": None},
        ],
    }
    shown = run("show", "other").stdout
    for line in ("owner:      -", "misses:     300/10 minutes", "disabled:   yes"):
        assert f"{line}\n" in shown
    assert "scopes:     identify:url identify:card\n" in shown
    (expiring, _) = run("show", "shop").stdout.splitlines()[-2:]
    assert expiring == "token:      created 2026-11-22T00:00:00Z, expires 2026-11-22T00:01:00Z"


def test_control_characters_in_a_store_do_not_reach_the_terminal(run: Run, path: Path) -> None:
    make_store(path, "shop")
    execute(path, "UPDATE keys SET note = 'a' || char(27) || '[31mb', owner = char(10)")
    for arguments in (["show", "shop"], ["list"]):
        assert "\x1b" not in run(*arguments).stdout
    assert len(run("list").stdout.splitlines()) == 2


def test_key_whose_last_token_expires_is_listed_as_expiring(run: Run, path: Path) -> None:
    make_store(path)
    ends = {"soon": (NOW + DAY, NOW + 2 * DAY), "later": (NOW + DAY, NOW + 20 * DAY)}
    for name, (first, second) in ends.items():
        tokens = (Token(digest(f"{name} 1"), NOW, first), Token(digest(f"{name} 2"), NOW, second))
        add(path, KeyRecord(name, NOW, tokens, expires=NOW + 90 * DAY))
    listed = json.loads(run("list", "--expiring", "14d", "--json").stdout)
    assert [each["id"] for each in listed] == ["soon"]


def test_json_has_the_token_and_the_key(run: Run, path: Path) -> None:
    for arguments in ("issue shop --create", "rotate shop"):
        shown = json.loads(run(*arguments.split(), "--json").stdout)
        assert digest(shown["token"]) in {token.digest for token in read(path)["shop"].tokens}
        assert (shown["id"], shown["state"]) == ("shop", "valid")


def test_store_of_the_configuration_is_used(invoke: Invoke, config: Config, path: Path) -> None:
    """Secrets, which this user may not have, are not needed, and other settings may be wrong."""
    keys = "keys: [{id: fixed, sha256: '${env:NO_SUCH_DIGEST}'}]"
    file = config(USERS, more=f"admin: 1\nauth: {{store: keys.db, {keys}}}\n")
    assert invoke("keys", "issue", "shop", "--create", "-c", file).exit_code == 0
    assert list(read(path)) == ["shop"]
    result = invoke("keys", "issue", "fixed", "-c", file)
    message = "config.yaml has a key fixed in auth.keys; use another id\n"
    assert (result.exit_code, result.stderr) == (1, message)


@pytest.mark.parametrize("by", ["sha256: '{}'", "token: '{}'"])
def test_token_of_a_configured_key_is_not_imported(
    invoke: Invoke, config: Config, path: Path, tmp_path: Path, by: str
) -> None:
    token = new_token("fixed")
    value = by.format(digest(token).hex().upper() if "sha" in by else token)
    file = config(USERS, more=f"auth: {{store: keys.db, keys: [{{id: fixed, {value}}}]}}\n")
    keys = tmp_path / "keys.jsonl"
    tokens = [{"sha256": each} for each in ("0" * 64, digest(token).hex())]
    keys.write_text(json.dumps({"id": "shop", "tokens": tokens}))
    result = invoke("keys", "import", keys, "--create", "-c", file)
    assert result.exit_code == 1
    assert "config.yaml has the token of shop in auth.keys; remove one of them" in result.stderr
    assert not path.exists()


def test_configuration_without_a_store_is_explained(invoke: Invoke, config: Config) -> None:
    unset = "the environment variable NO_SUCH_STORE is not set"
    for auth, problem in (
        ("{}", "auth.store is not set; set it, or use --store PATH"),
        ("{store: '${env:NO_SUCH_STORE}'}", f"2:15: auth.store: {unset}"),
    ):
        result = invoke("keys", "list", "-c", config(USERS, more=f"auth: {auth}\n"))
        assert (result.exit_code, problem in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("change", "number"),
    [("issue new", signal.SIGINT), ("rotate shop", signal.SIGTERM), ("revoke shop", signal.SIGINT)],
)
def test_nothing_is_changed_where_a_signal_comes_before_the_commit(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, change: str, number: signal.Signals
) -> None:
    """The exit code is none that a command has at its end."""
    method = change.split(maxsplit=1)[0].replace("issue", "add")
    make_store(path, "shop")
    known, change_keys = read(path), getattr(KeyEditor, method)

    def change_and_signal(*args: Any, **options: Any) -> Any:
        result = change_keys(*args, **options)
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        return result

    monkeypatch.setattr(KeyEditor, method, change_and_signal)
    result = run(*change.split())
    assert (result.exit_code, result.stdout) == (128 + number, "")
    assert result.stderr == ("\ninterrupted\n" if number is signal.SIGINT else "")
    assert read(path) == known


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_token_is_not_valid_where_a_signal_comes_once_it_is_printed(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    make_store(path)
    numbers = [number]

    def echo(*args: Any, **options: Any) -> None:
        write(*args, **options)
        while numbers:
            signal.raise_signal(numbers.pop())

    write = click.echo
    monkeypatch.setattr(click, "echo", echo)
    result = run("issue", "shop")
    assert result.exit_code == 128 + number
    assert "interrupted; the printed token is not valid" in result.stderr
    assert read(path) == {}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyStoreError("the disk is full"), (1, "is not valid")),
        (UncertainChangeError("no response"), (3, "may be valid")),
    ],
    ids=["failed", "uncertain"],
)
def test_failed_commit_says_whether_the_printed_token_is_valid(
    run: Run,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: KeyStoreError,
    outcome: tuple[int, str],
) -> None:
    @contextmanager
    def failing(_: KeyEditor) -> Iterator[None]:
        yield
        raise error

    make_store(path)
    monkeypatch.setattr(KeyEditor, "transaction", failing)
    result = run("issue", "shop", "--json")
    assert "idv_shop_" in result.stdout
    *_, reason = result.stderr.splitlines()
    code, validity = outcome
    assert reason == f"{error}; the printed token {validity}"
    assert result.exit_code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_at_the_commit_of_a_change_does_not_hide_that_it_is_made(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    @contextmanager
    def interrupted_after(self: SqliteKeyStore, **options: Any) -> Iterator[Any]:
        assert options["busy_timeout"] >= 1  # another command may write just now
        with connect(self, **options) as database:
            yield database
            if not options["read_only"]:
                signal.raise_signal(number)

    connect = SqliteKeyStore.connected
    shop = {"id": "shop", "sha256": "0" * 64}
    (tmp_path / "keys.jsonl").write_text(json.dumps(shop))
    lines = {**shop, "owner": "another"}, {"id": "later", "sha256": "1" * 64}
    (tmp_path / "later.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(SqliteKeyStore, "connected", interrupted_after)
    for arguments, message in (
        (f"import {tmp_path}/keys.jsonl --create", f"Created the key store {path}.\nImported 1"),
        (f"import {tmp_path}/later.jsonl --update", "Imported 1 key, updated 1;"),
        ("list", ""),
        ("disable shop", "shop: disabled\n"),
        ("enable shop", "shop: valid\n"),
        ("issue other", ""),
        ("rotate shop", ""),
        ("revoke shop", "shop: revoked\n"),
    ):
        signal.signal(number, signal.default_int_handler)
        result = run(*arguments.split())
        assert (result.exit_code, result.stderr.startswith(message)) == (0, True), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "output"),
    [("issue shop", CLOSED), ("issue shop --json", BROKEN), ("rotate known", "/dev/full")],
)
def test_nothing_is_changed_where_the_token_cannot_be_printed(
    path: Path, arguments: str, output: str
) -> None:
    make_store(path, "known")
    known = read(path)
    done = command("keys", *arguments.split(), "--store", path, output=output)
    assert (done.returncode, read(path)) == (1, known)
    (reason,) = done.stderr.splitlines()
    assert reason.startswith("standard output ")
    assert reason.endswith("; no key was changed")


def test_every_change_is_in_the_audit_log(
    run: Run, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who, the command and the key; never a token or its digest."""
    steps = ["issue", "rotate", "disable", "enable", "revoke"]
    make_store(path)
    tokens = [token for step in steps for token in run(step, "shop").stdout.split()]
    assert len(tokens) == 2
    for unchanged in ("revoke shop", "list", "show shop", "issue shop", "revoke other"):
        run(*unchanged.split())
    logged = capfd.readouterr().err
    lines = [json.loads(line) for line in logged.splitlines()]
    assert [each["command"] for each in lines] == [f"keys {step}" for step in steps]
    user = pwd.getpwuid(os.getuid()).pw_name
    for line in lines:
        assert (line["user"], line["key"], line["level"]) == (user, "shop", "info")
        assert line["logger"] == "tornado_idv.audit"
    for token in tokens:
        for secret in (token, token.split("_")[2], digest(token).hex()):
            assert secret not in logged


@pytest.mark.slow
def test_terminal_shows_no_audit_line(path: Path) -> None:
    make_store(path, "shop")
    seen = on_terminal("keys", "disable", "shop", "--store", path)
    assert seen.split("\r\n") == ["shop: disabled", ""]


@patch("os.getuid", lambda: 54321)
def test_audit_log_has_the_configured_format(
    invoke: Invoke, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is written at every ``logging.level``. A user without a name has a number."""
    config = tmp_path / "config.yaml"
    config.write_text("auth: {store: keys.db}\nlogging: {format: console, level: error}\n")
    assert invoke("keys", "issue", "shop", "--create", "--config", config).exit_code == 0
    line = capfd.readouterr().err
    assert 'key changed user=54321 command="keys issue" key=shop' in line
