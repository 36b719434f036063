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


def options(password: str = "wrong", **changed: object) -> LdapOptions:
    bind = {"dn": "cn=idv", "password": password}
    given = {**OPTIONS, "name": "staff", "kind": "ldap", "uris": URIS, "connect_timeout": "50ms"}
    return LdapOptions.model_validate({**given, "bind": bind, **changed})


def refuse(refusals: Refusals, credentials: LdapOptions) -> AbstractContextManager[None]:
    with pytest.raises(Refused, match="no"), refusals.attempt(credentials):
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
        refuse(refusals, options())
        clock.now += minutes * 60 - 1
        for check in (refusals.check, lambda given: refusals.attempt(given).__enter__()):
            with pytest.raises(Refused, match=r"^no$"):
                check(options(uris=URIS[::-1]))
        refusals.check(options("another"))
        refusals.check(options(bind={"dn": "cn=another", "password": "wrong"}))
        clock.now += 1
        refusals.check(options())
        with pytest.raises(TimeoutError), refusals.attempt(options()):
            raise TimeoutError
    with refusals.attempt(options()):
        pass
    refuse(refusals, options())
    clock.now += 60
    refusals.check(options())


@contextmanager
def used_elsewhere(refusals: Refusals, *, is_refused: bool = False) -> Iterator[None]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with refuse(refusals, options()) if is_refused else refusals.attempt(options()):
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
    with refusals.attempt(options(password)):
        pass


def test_refusal_of_one_process_pauses_the_others_and_leaves_no_lock() -> None:
    clock = Ticker()
    refusals = Refusals(clock)
    with used_elsewhere(refusals, is_refused=True):
        with pytest.raises(Refused, match="no"):
            refusals.check(options())
        clock.now += 60
        use(refusals)


def test_credentials_are_used_in_one_process_at_a_time_until_it_ends() -> None:
    refusals = Refusals()
    with used_elsewhere(refusals):
        with pytest.raises(Unavailable):
            use(refusals)
        use(refusals, "another")
    use(refusals)


def test_credentials_that_were_just_accepted_are_used_in_all_processes() -> None:
    clock = Ticker()
    refusals = Refusals(clock)
    use(refusals)
    with used_elsewhere(refusals):
        use(refusals)
    clock.now += 10
    with used_elsewhere(refusals), pytest.raises(Unavailable):
        use(refusals)


def test_credentials_are_used_in_one_thread_at_a_time() -> None:
    refusals = Refusals()
    order: list[str] = []

    def use() -> None:
        with refusals.attempt(options()):
            order.append("second")

    thread = threading.Thread(target=use)
    with refusals.attempt(options()):
        thread.start()
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
