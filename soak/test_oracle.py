"""The checker detects wrong responses, and no fault causes one."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from soak.checker import Checker, Episode, Outcome, Request, Response, Times
from soak.fault_catalogue import Scenario, of_database
from soak.harness import QUIET
from soak.oracle import ENGINES, Harness, _leaks, rows, run_in_order
from soak.people import Person
from soak.postgres import running_postgres_sites
from soak.reference import Reference, SqliteSource
from support.processes.proxies import not_installed
from support.processes.service import KEY as KEY_OF_CALLER

TIMES = Times(ttl=1, negative_ttl=1, stale=10, timeout=1, lag=1)
ALICE, NOW_PRO = Person("a-1", "1"), Person("a-1", "1", "Pro")
BOB = Person("a-2", "2")
ZOE = Person("z-1", "3")
NOT_FOUND = b'{"status":"error","code":"not_found","message":"User not found"}'
NO_ROUTE = b'{"status":"error","code":"no_such_route","message":"No such route"}'
OUT = b'{"status":"error","code":"backend_unavailable","message":"Could not tell, try again"}'
FORMAT = b'{"status":"error","code":"invalid_format","message":"Invalid format"}'
KEY = b'{"status":"error","code":"token_invalid_or_expired","message":"Token invalid or expired"}'


class Clock:
    """A clock whose time a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def checker(tmp_path: Path) -> Checker:
    """Return a checker. Alice exists from 100 s to 300 s, Bob from 200 s.

    Alice is Pro from 200 s. Zoe, a user of an upstream, exists from 300 s to 315 s. From 250 s to
    260 s there is a fault. From 320 s to 330 s the database is unavailable.
    """
    clock = Clock()
    reference = Reference(clock)
    for at, nickname, plan in (
        (100, "a-1", "Free"),
        (200, "a-1", "Pro"),
        (200, "a-2", "Free"),
        (300, "a-1", None),
        (300, "z-1", "Free"),
        (315, "z-1", None),
    ):
        clock.now = at
        reference.begin(nickname, plan)
        reference.end()
    source = SqliteSource(tmp_path / "a.db", "a", Reference(clock))
    blind = next(of_database(source))
    seeing = replace(blind, blind=False)
    return Checker(reference, TIMES, "z", [_episode(seeing, 250), _episode(blind, 320)])


def _episode(scenario: Scenario, begun: float) -> Episode:
    return Episode(scenario, begun, injected=begun, lifted=begun + 10, recovered=begun + 11)


class Case(NamedTuple):
    """A response to a request for a user at some time, and the expected class."""

    at: float
    person: Person | None
    status: int
    body: bytes
    outcome: Outcome


ANSWERS = {
    "the current record": Case(150, ALICE, 200, ALICE.body, "fresh"),
    "the record before a recent edit": Case(200.5, ALICE, 200, ALICE.body, "stale"),
    "a removed record within its TTL": Case(316.5, ZOE, 200, ZOE.body, "stale"),
    "the record before an earlier edit that is noticed": Case(
        201.5, ALICE, 200, ALICE.body, "wrong"
    ),
    "a removed record after its TTL": Case(318, ZOE, 200, ZOE.body, "wrong"),
    "a future record": Case(150, ALICE, 200, NOW_PRO.body, "wrong"),
    "another's record": Case(150, ALICE, 200, BOB.body, "wrong"),
    "the record with another byte": Case(150, ALICE, 200, ALICE.body + b" ", "wrong"),
    "a record of a removed user": Case(303, ALICE, 200, NOW_PRO.body, "wrong"),
    "a removed record soon after a fault": Case(305, ALICE, 200, NOW_PRO.body, "wrong"),
    "a cached record during an outage": Case(321, BOB, 200, BOB.body, "stale"),
    "a record removed during an outage": Case(325, ZOE, 200, ZOE.body, "stale"),
    "a record removed longer ago than the stale time": Case(329, ZOE, 200, ZOE.body, "wrong"),
    "a record purged before an outage": Case(325, ALICE, 200, NOW_PRO.body, "wrong"),
    "not found": Case(150, BOB, 404, NOT_FOUND, "404"),
    "not found just after the user was added": Case(201, BOB, 404, NOT_FOUND, "404"),
    "not found long after the user was added": Case(203, BOB, 404, NOT_FOUND, "wrong"),
    "not found for an existing user": Case(150, ALICE, 404, NOT_FOUND, "wrong"),
    "cached not found during an outage": Case(321, ALICE, 404, NOT_FOUND, "404"),
    "not found that no backend determined": Case(325, ALICE, 404, NOT_FOUND, "wrong"),
    "not found during a fault that hides no user": Case(
        255, Person("a-9", "9"), 404, NOT_FOUND, "404"
    ),
    "another 404": Case(150, BOB, 404, NO_ROUTE, "wrong"),
    "unavailable": Case(150, ALICE, 503, OUT, "503"),
    "a 503 of another server": Case(150, ALICE, 503, b"<html>", "wrong"),
    "a rejected key": Case(150, ALICE, 401, KEY, "wrong"),
    "no response": Case(150, ALICE, 0, b"", "wrong"),
    "a bad request rejected": Case(150, None, 422, FORMAT, "422"),
    "a bad request answered": Case(150, None, 404, NOT_FOUND, "wrong"),
}


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS.keys())
def test_response_is_classified_by_the_reference_at_its_time(checker: Checker, case: Case) -> None:
    request, response = (
        Request("text", case.person, case.at),
        Response(case.status, case.body, "1", case.at),
    )
    assert checker.outcome(request, response) == case.outcome


REMOVED = Response(200, ZOE.body, None, 318)
UNAVAILABLE = Response(503, OUT, "1", 317)


@pytest.mark.parametrize(
    ("begun", "response", "outcome"),
    [
        (316.9, UNAVAILABLE, "stale"),
        (316.5, replace(REMOVED, ended=317), "stale"),  # a call of the backend timed out
        (316.9, replace(REMOVED, ended=317), "wrong"),
        (315.5, replace(UNAVAILABLE, ended=315.6), "wrong"),
    ],
    ids=["503", "slow", "quick", "503 long before"],
)
def test_removed_record_is_stale_without_a_fault_after_a_failed_lookup(
    checker: Checker, begun: float, response: Response, outcome: Outcome
) -> None:
    checker.outcome(Request("another", ZOE, begun), response)
    assert checker.outcome(Request("text", ZOE, 318), REMOVED) == outcome


def test_failed_lookup_of_another_process_excuses_no_stale_record(checker: Checker) -> None:
    checker.outcome(Request("another", ZOE, 316.9, port=1), UNAVAILABLE)
    assert checker.outcome(Request("text", ZOE, 318, port=2), REMOVED) == "wrong"


def test_strict_check_permits_no_stale_record_without_a_fault(checker: Checker) -> None:
    checker.strict = True
    assert checker.outcome(Request("another", ZOE, 316.9), UNAVAILABLE) == "wrong"
    assert checker.outcome(Request("text", ZOE, 318), REMOVED) == "wrong"


@pytest.mark.parametrize(
    "case",
    [
        Case(345, ZOE, 200, ZOE.body, "wrong"),
        Case(150, ALICE, 404, NOT_FOUND, "wrong"),
        Case(202, ALICE, 200, ALICE.body, "wrong"),
    ],
    ids=["after the stale time", "not found", "an edit that is noticed"],
)
def test_failed_lookup_excuses_no_other_response(checker: Checker, case: Case) -> None:
    failed = Response(503, OUT, "1", case.at - 0.5)
    assert checker.outcome(Request("another", BOB, case.at - 0.6), failed) == "503"
    request = Request("text", case.person, case.at)
    assert checker.outcome(request, Response(case.status, case.body, None, case.at)) == "wrong"


def test_context_of_a_response_has_the_last_faults_and_plans_of_the_user(checker: Checker) -> None:
    assert checker.context(Request("text", ZOE, 318)) == (
        "truncated: begun -68.00, injected -68.00, lifted -58.00, recovered -57.00; "
        "truncated: begun +2.00, injected +2.00, lifted +12.00, recovered +13.00; "
        "None from -inf on; Free from -18.00 on; None from -3.00 on"
    )


def test_a_503_without_retry_after_is_wrong(checker: Checker) -> None:
    assert checker.outcome(Request("text", ALICE, 150), Response(503, OUT, None, 150.1)) == "wrong"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        *("files", "sqlite", "upstream", "postgres", "redis", "ldap"),
        *("two-upstream", "two-postgres", "two-ldap"),
    ],
)
def test_no_fault_of_an_engine_causes_a_wrong_response(name: str) -> None:
    """Each fault occurs once, and each service recovers from it."""
    engine = ENGINES[name]
    if name.endswith("ldap"):
        pytest.importorskip("ldap", reason=not_installed("python-ldap"))
    if not engine.is_installed:
        pytest.skip(not_installed(str(engine.needs)))
    harness: Harness = engine.harness
    if name == "postgres":
        harness = partial(running_postgres_sites, replicas=[3], queries=False)
    sites = asyncio.run(run_in_order(harness))
    assert [violation for site in sites for violation in site.violations] == []
    assert sum(int(row["wrong"]) for row in json.loads(json.dumps(rows(sites)))) == 0
    if name == "files":
        assert {site.name for site in sites} == {"sqlite", "yaml", "upstream", "chain"}
    for site in sites:
        assert len(site.ports) == (3 if name == "postgres" else 1)
        assert set(site.tallies) - {QUIET} == {each.name for each in site.scenarios}
        assert sum(tally.outcomes["fresh"] for tally in site.tallies.values()) > 0


@pytest.mark.parametrize("secret", [KEY_OF_CALLER, *ALICE.spellings[:2], "97100000001"])
def test_secret_in_a_log_is_a_violation(tmp_path: Path, secret: str) -> None:
    (tmp_path / "config.log").write_text(f"a line\na line with {secret}\n")
    assert _leaks(tmp_path) == [f"a secret is logged: a line with {secret}"]
