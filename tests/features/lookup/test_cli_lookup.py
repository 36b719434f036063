"""``tornado-idv lookup``: the backends asked from the command line."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from idv_yaml.backend import YamlBackend
from support.processes.process import Invoke, command
from support.processes.service import make_database
from tornado_idv.features.lookup import command as lookup_command
from tornado_idv.lookup.chain import Explanation
from tornado_idv.lookup.guard import BackendCall
from tornado_idv.model import Answer

Config = Callable[..., Path]
USERS = "name: users, kind: yaml, path: users.yaml"
NOBODY_LISTENS = "name: origin, kind: upstream, base_url: 'http://127.0.0.1:1'"
ALICE = {
    "status": "ok",
    "plan": "Größer",
    "card_number": "4000123412341234",
    "nickname": "@alice",
    "profile_url": "https://profiles.example/m/alice",
    "backend": "users",
}


@pytest.mark.parametrize("who", ["nickname", "profile_url", "card_number"])
def test_a_user_is_found_however_asked_for(invoke: Invoke, config: Config, who: str) -> None:
    result = invoke("lookup", ALICE[who], "-c", config(USERS), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == ALICE
    lines = invoke("lookup", ALICE[who], "-c", config(USERS)).stdout.splitlines()
    assert lines == [f"{name + ':':13} {text}" for name, text in ALICE.items()]


def test_an_unexpected_error_is_not_the_answer_no(
    invoke: Invoke, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(lookup_command, "_find")
    result = invoke("lookup", "@alice", "-c", config(USERS))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("unexpected error:\n")
    assert "alice" not in result.stderr


@pytest.mark.parametrize(
    ("who", "hint"),
    [
        ("alice", "; did you mean @alice?"),
        *(
            (who, ", only digits: no spaces, dashes or dots")
            for who in ("4000-1", "4000 1", "4000.1")
        ),
        *((who, ", or a card's digits") for who in ("@a b", "", "\u0664\u0660")),
        ("https://evil.example/m/alice", ", or a card's digits"),
        ("1" * 33, ""),
    ],
    ids=ascii,
)
def test_an_invalid_identifier_is_wrong_use(
    invoke: Invoke, config: Config, who: str, hint: str
) -> None:
    """The valid forms are printed, and a guess at what was meant."""
    result = invoke("lookup", "-c", config(USERS), "--", who)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "write @nick, https://profiles.example/m/nick, or a card's digits" in result.stderr
    assert result.stderr.splitlines()[-1].endswith(hint)
    result = invoke("lookup", "-c", config(USERS), "--json", "--", who)
    assert (result.exit_code, result.stderr) == (2, "")
    record = json.loads(result.stdout)
    assert (record["status"], record["code"]) == ("error", "invalid_format")
    assert record["message"].endswith(hint)


def test_each_backend_that_was_asked_is_explained_in_order(
    invoke: Invoke, config: Config, folder: Path
) -> None:
    """One after the one that knew the user was not asked, nor one whose match excludes the user."""
    make_database(folder / "users.db", ("bob", "1", "Pro", None))
    database = "name: members, kind: sqlite, path: users.db"
    excluded = NOBODY_LISTENS.replace("origin", "vips") + ', match: "@vip-.*"'
    path = config(excluded, database, USERS, NOBODY_LISTENS)
    excludes = "not called: its match excludes the query"

    def asked(who: str, code: int) -> list[tuple[str, str]]:
        """Return the backends and outcomes, which are the same in JSON and in lines."""
        done = invoke("lookup", who, "-c", path, "--explain", "--json")
        assert done.exit_code == code
        backends = json.loads(done.stdout)["backends"]
        assert all(0 <= each["ms"] < 10_000 for each in backends)
        found = [(each["backend"], each["outcome"]) for each in backends]
        done = invoke("lookup", who, "-c", path, "--explain")
        assert re.findall(r"\n  asked (\w+): (.*) \([\d.]+ ms\)", done.stdout) == found
        return found

    known = [("vips", excludes), ("members", "not known here"), ("users", "found")]
    assert asked("@alice", 0) == known
    *others, (name, outcome) = asked("@nobody", 3)
    assert others == [*known[:2], ("users", "not known here")]
    assert (name, outcome.startswith("not known here")) == ("origin", False)


@pytest.mark.parametrize(
    ("backend", "line"),
    [("name: users, kind: yml", 3), ("name: gone, kind: yaml, path: gone.yaml", None)],
    ids=["a bad configuration", "a backend that cannot be opened"],
)
def test_a_backend_that_cannot_be_opened_is_reported_as_json(
    invoke: Invoke, config: Config, backend: str, line: int | None
) -> None:
    result = invoke("lookup", "@alice", "-c", config(backend), "--json")
    assert (result.exit_code, result.stderr) == (3, "")
    record = json.loads(result.stdout)
    assert record["status"] == "undetermined"
    assert [each["line"] for each in record["problems"]] == [line]
    assert record["problems"][0]["message"] in record["reason"]


@pytest.mark.slow
def test_a_failure_is_printed_once(config: Config) -> None:
    """Of a real process: what the service would log of it is left out."""
    result = command("lookup", "@alice", "-c", str(config(NOBODY_LISTENS)))
    assert (result.returncode, result.stderr) == (3, "")
    status, reason = result.stdout.splitlines()
    assert status == "status:       undetermined"
    assert reason.startswith("reason:       origin: ")


@pytest.mark.parametrize("option", ["--explain", "--steps"])
def test_how_long_an_answer_is_cached_is_explained(
    invoke: Invoke, config: Config, option: str
) -> None:
    path = config(USERS)
    result = invoke("lookup", "@nobody", "-c", path, option, "--json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["code"], record["cache_ttl_s"]) == (1, "not_found", 30)
    assert "backend" not in record
    lines = invoke("lookup", "@alice", "-c", path, option).stdout.splitlines()
    assert "  cached for at most 300 s" in lines
    path.write_text(path.read_text().replace("backends:", "cache: {ttl: 0s}\nbackends:"))
    lines = invoke("lookup", "@alice", "-c", path, option).stdout.splitlines()
    assert "  cached not at all" in lines


def test_statement_of_a_file_is_shown(invoke: Invoke, config: Config, folder: Path) -> None:
    make_database(folder / "users.db", ("bob", "1", "Pro", None))
    path = config("name: members, kind: sqlite, path: users.db", USERS)
    lines = invoke("lookup", "@bob", "-c", path, "--steps").stdout.splitlines()
    statement = re.compile(r'    statement         SELECT .* FROM "users" AS u WHERE')
    assert any(map(statement.match, lines))
    assert lines[-3:] == [
        '    parameters        ["bob", "bob"]',
        "    rows              1",
        '    row               ["Pro", "1", "bob", null]',
    ]
    result = invoke("lookup", "@alice", "-c", path, "--steps", "--json")
    first, second = json.loads(result.stdout)["backends"]
    assert [each["step"] for each in first["steps"]] == ["statement", "parameters", "rows"]
    assert (second["outcome"], second["steps"]) == ("found", [])


def test_steps_before_a_failure_are_shown(invoke: Invoke, config: Config, folder: Path) -> None:
    make_database(folder / "users.db", ("bob", "1", "", None))
    path = config("name: members, kind: sqlite, path: users.db")
    result = invoke("lookup", "@bob", "-c", path, "--steps")
    assert result.exit_code == 3
    assert '    row               ["", "1", "bob", null]' in result.stdout


def test_one_backend_is_queried_alone(invoke: Invoke, config: Config) -> None:
    """The others may not even be there."""
    path = config("name: gone, kind: yaml, path: gone.yaml", NOBODY_LISTENS, USERS)
    result = invoke("lookup", "@alice", "-c", path, "--backend", "users")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "backend:      users"
    result = invoke("lookup", "@alice", "-c", path, "--backend", "user")
    assert result.exit_code == 2
    assert "no backend has the name user; there are: gone, origin, users" in result.stderr


def test_a_record_changes_no_other_text(invoke: Invoke, config: Config, folder: Path) -> None:
    """Characters that reorder a line are shown as escapes; scripts get JSON as it is."""
    plan = "Free\u202e\u200b"
    make_database(folder / "users.db", ("bob", "1", plan, None))
    path = config("name: members, kind: sqlite, path: users.db")
    lines = invoke("lookup", "@bob", "-c", path).stdout.splitlines()
    assert lines[1] == r"plan:         Free\u202e\u200b"
    assert len(lines) == 6
    assert json.loads(invoke("lookup", "@bob", "-c", path, "--json").stdout)["plan"] == plan


@pytest.mark.parametrize(("arguments", "code"), [(("lookup", "@alice"), 0), (("check",), 0)])
def test_errors_that_libraries_log_hold_no_value(
    invoke: Invoke,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    arguments: tuple[str, ...],
    code: int,
) -> None:
    """Asyncio logs the error of a callback, with all values in it."""
    open_it = YamlBackend.open

    async def open_and_fail_later(backend: YamlBackend) -> None:
        asyncio.get_running_loop().call_soon(int, "tweety")
        await open_it(backend)

    monkeypatch.setattr(YamlBackend, "open", open_and_fail_later)
    result = invoke(*arguments, "-c", config(USERS))
    assert result.exit_code == code
    shown = result.output + caplog.text
    assert ("ValueError" in shown, "tweety" in shown) == (True, False)


def test_times_are_in_milliseconds(
    invoke: Invoke, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(*_: object) -> Explanation:
        call = BackendCall("users", "not known here", 0.0125, "not_found")
        return Explanation(Answer(None, body=b"{}"), [call])

    monkeypatch.setattr("tornado_idv.lookup.directory.Directory.explain", explain)
    result = invoke("lookup", "@alice", "-c", config(USERS), "--explain")
    assert result.stdout.splitlines()[-1] == "  asked users: not known here (12.5 ms)"
