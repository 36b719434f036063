"""``check``, ``lookup`` and ``users import`` of a backend with a canary."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from idv_upstream.backend import UpstreamBackend
from support.databases import sqlite_databases
from support.databases.sqlite_databases import ALICE
from support.databases.user_lists import HEADER, csv_row
from support.http.live_directory import live_directory
from support.processes.ports import free_port
from support.processes.process import Invoke
from tornado_idv import BackendResult, User

Config = Callable[..., Path]
BIRD = User("Free", "9001", "idv-canary")
PEOPLE = "name: people, kind: sqlite, path: people.db, canary: {nickname: '@idv-canary'%s}"
BY_BOTH = PEOPLE % ", card_number: '9001'"
LOST = 'canary @idv-canary is not found: its "not found" is not trusted'


def test_check_fails_without_the_canary(invoke: Invoke, config: Config, folder: Path) -> None:
    path = sqlite_databases.write(folder / "people.db", ALICE, BIRD)
    file = config(BY_BOTH)
    done = invoke("check", "-c", file)
    assert (done.exit_code, done.stderr) == (0, "")
    sqlite_databases.run(path, "UPDATE users SET card_number = '9002' WHERE card_number = '9001'")
    done = invoke("check", "-c", file)
    lost = LOST.replace("canary is", "canary (by card number) is")
    assert (done.exit_code, done.stderr) == (1, f"{file}:3:51: backends[0].canary: {lost}\n")
    sqlite_databases.run(path, "DELETE FROM users")
    done = invoke("check", "-c", file, "--json")
    problems = [each["message"] for each in json.loads(done.stdout)["problems"]]
    assert (done.exit_code, problems) == (1, [LOST, lost])
    assert invoke("check", "-c", file, "--config-only").exit_code == 0


def test_check_says_what_was_confirmed(invoke: Invoke, config: Config) -> None:
    """A line for each lookup of a canary and of a made-up user, and none for what is off."""
    confirmed = [
        "crm: canary @idv-canary found",
        "crm: canary @idv-disabled (absent) not found",
        "crm: canary @idv-canary (by card number) found",
    ]
    online = ["crm: a made-up nickname not found", "crm: a made-up card_number not found"]
    with live_directory(BIRD) as directory:
        file = config(UPSTREAM % (directory.url, "plan"))
        file.write_text(file.read_text().replace("'9001'", "'9001', absent: '@idv-disabled'"))
        done = invoke("check", "-c", file)
        rows = done.stdout.splitlines()
        assert [each[15:] for each in rows if each.startswith("confirmed      ")] == confirmed
        assert not [each for each in rows if each.endswith((" none", " no"))]
        summary = json.loads(invoke("check", "-c", file, "--online", "--json").stdout)["summary"]
        with patch.object(UpstreamBackend, "find", side_effect=TimeoutError):
            done = invoke("check", "-c", file, "--online")
        for user in (ALICE, BackendResult(ALICE)):
            with patch.object(UpstreamBackend, "find", return_value=user):
                assert (
                    "a made-up nickname is found" in invoke("check", "-c", file, "--online").stderr
                )
    assert "a made-up nickname: no answer within 0.8 s" in done.stderr
    assert summary["confirmed"] == confirmed + online
    assert summary["listens_on"] == ["http://127.0.0.1:8080"]
    (backend,) = summary["backend"]
    assert backend.startswith("crm (upstream), ")
    assert "shadow" not in summary


def test_check_fails_where_the_canary_protects_nothing(invoke: Invoke, config: Config) -> None:
    by_card = "by_card: {url: /cards, query: {n: '{card_number}'}}"
    response = "response: {nickname: name, card_number: card, plan: plan}"
    upstream = "name: crm, kind: upstream, base_url: 'http://127.0.0.1:1'"
    file = config(f"{upstream}, {by_card}, {response}, canary: {{nickname: '@bird', absent: '@b'}}")
    done = invoke("check", "-c", file, "--online")
    assert done.exit_code == 1
    for name in ("@bird", "@b (absent)"):
        assert f"canary {name}: the backend serves no lookups by nickname" in done.stderr
    assert "a made-up card_number: connection failed" in done.stderr


UPSTREAM = """\
name: crm, kind: upstream, base_url: '%s', canary: {nickname: '@idv-canary', card_number: '9001'},
    by_nickname: {url: /name, json: {input: '@{nickname}'}, repeatable: true},
    by_card: {url: /card, json: {card_number: '{card_number}'}, repeatable: true},
    response: {nickname: "trim_prefix(nickname, '@')", card_number: card_number, plan: %s,
    not_known_when: "code == 'not_found'"}"""


def test_check_warns_of_canaries_that_cannot_be_looked_up(invoke: Invoke, config: Config) -> None:
    """A source that is down, while something else is changed, does not prevent a reload."""
    file = config(UPSTREAM % (f"http://127.0.0.1:{free_port()}", "plan"))
    done = invoke("check", "-c", file)
    lines = done.stderr.splitlines()
    assert done.exit_code == 0
    warned = [line.partition("canary @")[2].partition(":")[0] for line in lines]
    assert warned == ["idv-canary", "idv-canary (by card number)"]
    assert all(line.startswith(f"warning: {file}:3:") for line in lines)


@pytest.mark.parametrize(
    ("plan", "disabled", "problem"),
    [
        ("plan", "plan", None),
        ("level", "plan", "a wrong record: plan (level) is missing"),
        ("plan", "plann", "canary @idv-disabled (absent) is found: its answers are not trusted"),
    ],
)
def test_check_fails_where_a_canary_is_wrong_or_a_disabled_user_is_found(
    invoke: Invoke, config: Config, plan: str, disabled: str, problem: str | None
) -> None:
    condition = f"code == 'not_found' || {disabled} == 'Disabled'"
    with live_directory(BIRD, User("Disabled", "9002", "idv-disabled")) as directory:
        upstream = (UPSTREAM % (directory.url, plan)).replace("code == 'not_found'", condition)
        canary = "'9001', plan: Free, absent: '@idv-disabled'"
        file = config(upstream.replace("'9001'", canary))
        checked, looked_up = (
            invoke(*command, "-c", file) for command in (("check",), ("lookup", "@idv-canary"))
        )
    assert (checked.exit_code, looked_up.exit_code) == ((1, 3) if problem else (0, 0))
    if problem:
        of_canary = [each for each in checked.stderr.splitlines() if "[0].canary: " in each]
        assert any(problem in each for each in of_canary)
        assert problem in looked_up.output


def test_canary_need_not_protect_lookups_that_the_backend_does_not_serve(
    invoke: Invoke, config: Config
) -> None:
    by_card = "by_card: {url: /card, json: {card_number: '{card_number}'}, repeatable: true}"
    with live_directory(BIRD) as directory:
        upstream = (UPSTREAM % (directory.url, "plan")).replace(by_card + ",", "")
        done = invoke("check", "-c", config(upstream.replace(", card_number: '9001'", "")))
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("stored", "listed", "options", "missing"),
    [
        ([], [ALICE, BIRD], [], None),
        ([BIRD], [ALICE], ["--max-removed", "100%"], "@idv-canary"),
        ([], [ALICE, User("Free", "9002", "idv-canary")], [], "@idv-canary (by card number)"),
        ([BIRD], [ALICE], ["--merge"], None),
        ([], [ALICE], ["--merge"], "@idv-canary"),
        ([BIRD], [User("Free", "9002", "idv-canary")], ["--merge"], "@idv-canary (by card number)"),
        ([], [ALICE, User("", "9001", "idv-canary")], ["--max-rejected", "100%"], "@idv-canary"),
    ],
)
def test_list_without_the_canary_is_refused(
    invoke: Invoke,
    config: Config,
    folder: Path,
    *,
    stored: list[User],
    listed: list[User],
    options: list[str],
    missing: str | None,
) -> None:
    path = sqlite_databases.write(folder / "people.db", *stored)
    before = path.read_bytes()
    (folder / "list.csv").write_text(HEADER + "".join(map(csv_row, listed)))
    source = folder / "list.csv"
    done = invoke("users", "import", source, "--to", "people", *options, "-c", config(BY_BOTH))
    if missing is None:
        assert (done.exit_code, path.read_bytes() != before) == (0, True), done.stderr
    else:
        problem = f'does not have canary {missing}; without it, "not found" is not trusted'
        assert (done.exit_code, path.read_bytes()) == (1, before)
        assert f"list.csv: {problem}; nothing was changed" in done.stderr


@pytest.mark.parametrize(
    ("canary", "problem"),
    [
        ("{nickname: Bird}", "3:70: backends[0].canary.nickname: the nickname has a length or"),
        ("{card_number: '12'}", "3:73: backends[0].canary.card_number: the card number has too"),
        ("[{nickname: a}, {nickname: '@'}]", "3:86: backends[0].canary[1].nickname: the nickname"),
        ("{plan: Pro, absent: '@a'}", "3:59: backends[0].canary: needs nickname, card_number, or"),
        ("{}", "3:59: backends[0].canary: needs nickname, card_number, or both"),
        ("[]", "3:59: backends[0].canary: too few items: at least 1, not 0"),
        ("{absent: a}", "3:68: backends[0].canary.absent: a card number must be ASCII digits"),
        (f"[{', '.join(['{nickname: a}'] * 6)}]", "3:59: backends[0].canary: too many items: at"),
    ],
)
def test_canary_is_checked_as_a_query_of_a_client(
    invoke: Invoke, config: Config, canary: str, problem: str
) -> None:
    identifiers = "identifiers: {nickname_pattern: '[a-z]+', card_length: [4, 16]}\n"
    file = config(f"name: people, kind: sqlite, path: people.db, canary: {canary}")
    file.write_text(file.read_text() + identifiers)
    done = invoke("check", "-c", file, "--config-only")
    assert (done.exit_code, f"{file}:{problem}" in done.stderr) == (1, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_canary_is_folded_as_a_nickname(invoke: Invoke, config: Config, folder: Path) -> None:
    sqlite_databases.write(folder / "people.db", User("Free", "9001", "IDV-Canary"))
    file = config(PEOPLE.replace("@idv", "@IDV") % "", more="identifiers: {nickname_case: fold}\n")
    assert invoke("check", "-c", file).exit_code == 0


@pytest.mark.parametrize(
    ("condition", "canary", "missing"),
    [
        ("code == 'not_found' || plan == 'Disabled'", "", None),
        ("code == 'not_found' || plann == 'Disabled'", "", "plann"),
        ("code == 'not_found' || plann == 'Disabled'", ", absent: '@nobody'", None),
    ],
)
def test_check_warns_of_a_condition_whose_members_nothing_has(
    invoke: Invoke, config: Config, condition: str, canary: str, missing: str | None
) -> None:
    with live_directory(BIRD) as directory:
        upstream = (UPSTREAM % (directory.url, "plan")).replace("code == 'not_found'", condition)
        more = "identifiers: {nickname_pattern: '[a-z-]+'}\n"  # which no made-up nickname matches
        file = config(upstream.replace("'9001'", f"'9001'{canary}"), more=more)
        done = invoke("check", "-c", file)
        with patch.object(UpstreamBackend, "explain", side_effect=TimeoutError):
            assert invoke("check", "-c", file).stderr == ""
    text = f"not_known_when reads members that no response has ({missing})"
    assert (done.exit_code, text in done.stderr) == (0, missing is not None)
