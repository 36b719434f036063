"""A service over an OpenLDAP server, and the faults of the server."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from soak.checker import Checker
from soak.fault_catalogue import Scenario, between, injected
from soak.harness import BACKEND_LIMITS, CONFIG, TIMES, Builder, Site
from soak.ldap_proxy import (
    Fault,
    LdapProxy,
    dripping,
    ending_with,
    flooding,
    freezing,
    passing,
    refusing,
    resetting,
    sending,
    under_another_id,
)
from soak.people import Person
from soak.reference import Reference, Source
from support.databases.ldap_server import ADMIN, INDEX, PASSWORD, PEOPLE, SUFFIX, LdapServer
from support.http.tcp_relay import relaying

_SERVICE = f"cn=idv,{SUFFIX}"
_ACCOUNT = f"dn: {_SERVICE}\nobjectClass: person\ncn: idv\nsn: idv\nuserPassword: {PASSWORD}\n\n"
_RIGHTS = f"""
access to attrs=userPassword by anonymous auth
access to * by dn.exact="{_SERVICE}" read by * none
"""


class LdapSource(Source):
    """Users as entries of a server. Each entry is added, changed and deleted alone."""

    def __init__(self, server: LdapServer, letter: str, reference: Reference) -> None:
        self.server = server
        self._stored: dict[str, Person] = {}
        super().__init__(letter, reference)

    def make(self) -> None:
        self.write()

    def write(self) -> None:
        with self._bound() as connection:
            for nickname in self._stored.keys() - self.people.keys():
                del self._stored[nickname]
                connection.delete_s(dn_of(nickname))
            for nickname, each in self.people.items():
                stored = self._stored.get(nickname)
                if stored is None:
                    connection.add_s(dn_of(nickname), entry_of(each))
                elif stored is not each:
                    connection.modify_s(
                        dn_of(nickname), [(_REPLACE, "title", [each.plan.encode()])]
                    )
                self._stored[nickname] = each

    def move(self, before: str, after: str) -> None:
        """Rename the entry that is the parent of all users' entries."""
        with self._bound() as connection:
            connection.rename_s(f"ou={before},{SUFFIX}", f"ou={after}")

    def set_password(self, password: str) -> None:
        """Change the password of the service's account on the server."""
        with self._bound() as connection:
            change = (_REPLACE, "userPassword", [password.encode()])
            connection.modify_s(_SERVICE, [change])

    @contextmanager
    def _bound(self) -> Iterator[Any]:
        import ldap  # noqa: PLC0415 - needed only for this engine

        connection = ldap.initialize(self.server.uri)
        connection.simple_bind_s(ADMIN, PASSWORD)
        try:
            yield connection
        finally:
            connection.unbind_s()


_REPLACE = 2


def dn_of(nickname: str) -> str:
    return f"uid={nickname},{PEOPLE}"


def entry_of(each: Person) -> list[tuple[str, list[bytes]]]:
    values = {"uid": each.nickname, "cn": each.nickname, "sn": each.nickname}
    values |= {"employeeNumber": each.card, "title": each.plan}
    attributes = [(name, [text.encode()]) for name, text in values.items()]
    return [("objectClass", [b"inetOrgPerson"]), *attributes]


def of_ldap(source: LdapSource, proxy: LdapProxy, password_file: Path) -> Iterator[Scenario]:
    """Yield the faults of a server, of the connection to it, of its tree and its permissions."""
    server = source.server

    def scenario(name: str, begin: Callable[[], object], end: Callable[[], object]) -> Scenario:
        return Scenario(name, source, injected(begin, end), blind=True, harms_file=False)

    yield scenario("stopped", server.stop, server.start)
    yield scenario("SIGSTOP", server.pause, server.resume)
    move, move_back = partial(source.move, "people", "old"), partial(source.move, "old", "people")
    yield scenario("tree moved", move, move_back)

    def restart() -> None:
        server.stop()
        server.start()

    inject = injected(restart)
    yield Scenario("restarted", source, inject, blind=False, harms_file=False)

    passwords = (f"password-{number}" for number in count())

    def refuse() -> None:
        source.set_password(next(passwords))
        restart()

    def give() -> None:
        password = next(passwords)
        source.set_password(password)
        password_file.write_text(password)

    yield scenario("password changed", refuse, give)
    faults: dict[str, Fault] = {
        "closed": refusing,
        "frozen": freezing,
        "reset in the response": resetting,
        "one byte at a time": dripping,
        "100 MB": flooding,
        "HTTP": sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "bytes that are no message": sending(b"\x30\x05\x02\x01\x01\x65\x7f"),
        "another message id": under_another_id,
        "no such object": ending_with(32),
        "invalid credentials": ending_with(49),
        "unavailable": ending_with(52),
    }
    for name, fault in faults.items():
        inject = between(partial(proxy.become, fault), partial(proxy.become, passing))
        yield Scenario(name, source, inject, blind=True, harms_file=False)


@asynccontextmanager
async def running_ldap_sites(folder: Path, max_seconds: float) -> AsyncIterator[list[Site]]:
    """Run a service over an OpenLDAP server, for at most ``max_seconds``."""
    async with AsyncExitStack() as stack:
        server = LdapServer(folder / "slapd", persons=[_ACCOUNT], index=INDEX + _RIGHTS)
        server.start()
        stack.callback(server.stop)
        password_file = folder / "ldap.password"
        password_file.write_text(PASSWORD)
        reference = Reference()
        source = LdapSource(server, "l", reference)
        proxy = await stack.enter_async_context(relaying(server.port, LdapProxy))
        backend = f"""\
  - name: l
    kind: ldap
    uris: ['ldap://127.0.0.1:{proxy.port}']
    bind: {{dn: '{_SERVICE}', password: '${{file:{password_file}}}'}}
    base_dn: '{PEOPLE}'
    by_nickname: {{filter: '(uid={{nickname}})'}}
    by_card: {{filter: '(employeeNumber={{card_number}})'}}
    response: {{nickname: uid, card_number: employeeNumber, plan: title}}
    connect_timeout: 300ms
    cache_ttl: {TIMES.ttl * 1000:.0f}ms
    {BACKEND_LIMITS.replace(", breaker", chr(10) + "    breaker")}
"""
        services = await Builder(folder, max_seconds, stack).serve(ldap=CONFIG + backend)
        ports = [service.port for service in services.values()]
        checker = Checker(reference, TIMES, "l")
        yield [Site("ldap", ports, checker, [source], [*of_ldap(source, proxy, password_file)])]
