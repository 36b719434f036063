"""The oracle knows a lie when it is told one, and a short run meets none."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from support.faults.checker import Asked, Episode, Judge, Times, Told, Verdict
from support.faults.client import Person
from support.faults.fault_catalogue import Trouble, of_database
from support.faults.harness import QUIET
from support.faults.oracle import rows, run
from support.faults.reference import SqliteSource, Truth

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
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Knows Alice since 100 s, Pro since 200 s, gone since 300 s; Bob came at 200 s.

    There was trouble from 250 s to 260 s, and from 320 s on the database could not be asked.
    Zoe, of whom the service learns by asking, was there from 300 s to 315 s.
    """
    clock = Clock()
    truth = Truth(clock)
    for at, nickname, plan in (
        (100, "a-1", "Free"),
        (200, "a-1", "Pro"),
        (200, "a-2", "Free"),
        (300, "a-1", None),
        (300, "z-1", "Free"),
        (315, "z-1", None),
    ):
        clock.now = at
        truth.begin(nickname, plan)
        truth.end()
    source = SqliteSource(tmp_path / "a.db", "a", Truth(clock))
    blind = next(of_database(source))
    seeing = replace(blind, blind=False)
    return Judge(truth, TIMES, "z", [_episode(seeing, 250), _episode(blind, 320)])


def _episode(trouble: Trouble, begun: float) -> Episode:
    return Episode(trouble, begun, lifted=begun + 10, recovered=begun + 11)


class Case(NamedTuple):
    """An answer to a question about somebody at some time, and what it was."""

    at: float
    person: Person | None
    status: int
    body: bytes
    verdict: Verdict


ANSWERS = {
    "the truth": Case(150, ALICE, 200, ALICE.body, "fresh"),
    "the truth of a moment ago": Case(200.5, ALICE, 200, ALICE.body, "stale"),
    "the truth within its time to live": Case(316.5, ZOE, 200, ZOE.body, "stale"),
    "the truth of long ago, where edits are seen": Case(201.5, ALICE, 200, ALICE.body, "wrong"),
    "the truth of longer ago": Case(318, ZOE, 200, ZOE.body, "wrong"),
    "what is not yet true": Case(150, ALICE, 200, NOW_PRO.body, "wrong"),
    "another's record": Case(150, ALICE, 200, BOB.body, "wrong"),
    "the record with another byte": Case(150, ALICE, 200, ALICE.body + b" ", "wrong"),
    "a record of who is gone": Case(303, ALICE, 200, NOW_PRO.body, "wrong"),
    "one remembered in trouble": Case(305, ALICE, 200, NOW_PRO.body, "wrong"),
    "one remembered while it is out": Case(321, BOB, 200, BOB.body, "stale"),
    "one not seen to go while it is out": Case(325, ZOE, 200, ZOE.body, "stale"),
    "one gone for longer than the stale time": Case(329, ZOE, 200, ZOE.body, "wrong"),
    "one forgotten long ago while it is out": Case(325, ALICE, 200, NOW_PRO.body, "wrong"),
    "not found": Case(150, BOB, 404, NOT_FOUND, "404"),
    "not found a moment after the coming": Case(201, BOB, 404, NOT_FOUND, "404"),
    "not found long after the coming": Case(203, BOB, 404, NOT_FOUND, "wrong"),
    "not found who is there": Case(150, ALICE, 404, NOT_FOUND, "wrong"),
    "not found remembered while it is out": Case(321, ALICE, 404, NOT_FOUND, "404"),
    "not found made up while it is out": Case(325, ALICE, 404, NOT_FOUND, "wrong"),
    "not found while it can be told": Case(255, Person("a-9", "9"), 404, NOT_FOUND, "404"),
    "another 404": Case(150, BOB, 404, NO_ROUTE, "wrong"),
    "could not tell": Case(150, ALICE, 503, OUT, "503"),
    "a 503 of another's": Case(150, ALICE, 503, b"<html>", "wrong"),
    "a key refused": Case(150, ALICE, 401, KEY, "wrong"),
    "no answer": Case(150, ALICE, 0, b"", "wrong"),
    "a bad question refused": Case(150, None, 422, FORMAT, "422"),
    "a bad question answered": Case(150, None, 404, NOT_FOUND, "wrong"),
}


@pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_judged_by_what_was_true_when(judge: Judge, case: Case) -> None:
    asked, told = Asked("text", case.person, case.at), Told(case.status, case.body, "1", case.at)
    assert judge.verdict(asked, told) == case.verdict


def test_a_503_without_retry_after_is_wrong(judge: Judge) -> None:
    assert judge.verdict(Asked("text", ALICE, 150), Told(503, OUT, None, 150.1)) == "wrong"


@pytest.mark.slow
def test_a_short_run_meets_no_wrong_answer() -> None:
    """Each service has its troubles, recovers, and is right all along."""
    sites = asyncio.run(run(seconds=3, seed=7))
    table = rows(sites)
    assert [lie for site in sites for lie in site.lies] == []
    assert sum(int(row["wrong"]) for row in table) == 0
    assert {site.name for site in sites} == {"sqlite", "yaml", "upstream", "chain"}
    for site in sites:
        assert set(site.tallies) > {QUIET}
        assert sum(tally.verdicts["fresh"] for tally in site.tallies.values()) > 0
    json.dumps(table)
