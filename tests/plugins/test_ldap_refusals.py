"""Pauses after refused credentials, which all processes of a service share."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from idv_ldap.options import LdapOptions
from idv_ldap.refusals import Refusals, Refused
from support.databases.ldap_server import OPTIONS
from support.fakes.clock_and_backends import Ticker
from tornado_idv import Unavailable

URIS = ["ldap://127.0.0.1:1", "ldap://127.0.0.1:2"]


def credentials(password: str = "wrong", **changed: object) -> int:
    bind = {"dn": "cn=idv", "password": password}
    given = {**OPTIONS, "name": "staff", "kind": "ldap", "uris": URIS, "bind": bind}
    return LdapOptions.model_validate({**given, **changed}).credentials


def refuse(refusals: Refusals) -> AbstractContextManager[None]:
    with pytest.raises(Refused, match="no"), refusals.attempt(credentials(), 0.05):
        raise Refused("no")
    return nullcontext()


def test_pause_grows_to_an_hour_and_is_of_these_credentials_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that remains undetermined leaves its length."""
    monkeypatch.setattr("idv_ldap.refusals._PLACES", 1)  # the record of all credentials
    clock = Ticker()
    refusals = Refusals(clock)
    for minutes in (1, 10, 60, 60):
        refuse(refusals)
        clock.now += minutes * 60 - 1
        for check in (refusals.check, lambda given: refusals.attempt(given, 0.05).__enter__()):
            with pytest.raises(Refused, match=r"^no$"):
                check(credentials(uris=URIS[::-1]))
        refusals.check(credentials("another"))
        refusals.check(credentials(bind={"dn": "cn=another", "password": "wrong"}))
        clock.now += 1
        refusals.check(credentials())
        with pytest.raises(TimeoutError), refusals.attempt(credentials(), 0.05):
            raise TimeoutError
    with refusals.attempt(credentials(), 0.05):
        pass
    refuse(refusals)
    clock.now += 60
    refusals.check(credentials())


@contextmanager
def used_elsewhere(refusals: Refusals, *, is_refused: bool = False) -> Iterator[None]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with refuse(refusals) if is_refused else refusals.attempt(credentials(), 0.05):
            os.write(writing, b"x")
            threading.Event().wait()
    os.read(reading, 1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def use(refusals: Refusals, password: str = "wrong") -> None:
    with refusals.attempt(credentials(password), 0.05):
        pass


def test_refusal_of_one_process_pauses_the_others_and_leaves_no_lock() -> None:
    clock = Ticker()
    refusals = Refusals(clock)
    with used_elsewhere(refusals, is_refused=True):
        with pytest.raises(Refused, match="no"):
            refusals.check(credentials())
        clock.now += 60
        use(refusals)


def test_credentials_are_used_in_one_process_at_a_time_unless_they_were_just_accepted() -> None:
    """And until the process ends."""
    clock = Ticker()
    refusals = Refusals(clock)
    use(refusals)
    with used_elsewhere(refusals):
        use(refusals)
    clock.now += 10
    with used_elsewhere(refusals):
        with pytest.raises(Unavailable):
            use(refusals)
        use(refusals, "another")
    use(refusals)


def test_credentials_are_used_in_one_thread_at_a_time() -> None:
    refusals = Refusals()
    order: list[str] = []

    def use() -> None:
        with refusals.attempt(credentials(), 0.05):
            order.append("second")

    thread = threading.Thread(target=use)
    with refusals.attempt(credentials(), 0.05):
        thread.start()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
