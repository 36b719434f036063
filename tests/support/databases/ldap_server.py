"""A real OpenLDAP server on free ports, which the tests start, stop, freeze and restart."""

import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

from support.processes.ports import free_port, wait_until_listens
from support.processes.proxies import SEARCH_PATH, find_tool, not_installed

SUFFIX = "dc=example,dc=org"
PEOPLE = f"ou=people,{SUFFIX}"
ADMIN = f"cn=admin,{SUFFIX}"
PASSWORD = "s3cret-canary"
_SCHEMA = "/etc/ldap/schema"
_CONFIG = f"""\
include {_SCHEMA}/core.schema
include {_SCHEMA}/cosine.schema
include {_SCHEMA}/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {{folder}}/slapd.pid
TLSCACertificateFile {{folder}}/ca.pem
TLSCertificateFile {{folder}}/server.pem
TLSCertificateKeyFile {{folder}}/server.key
TLSVerifyClient try
authz-regexp "cn=client.*" "{ADMIN}"
{{options}}
database mdb
maxsize 1073741824
suffix "{SUFFIX}"
rootdn "{ADMIN}"
rootpw {PASSWORD}
directory {{folder}}/db
{{index}}
{{database}}
"""
_TREE = f"""\
dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people

"""
INDEX = "index objectClass,uid,employeeNumber eq"
BIND = {"dn": ADMIN, "password": PASSWORD}
OPTIONS: dict[str, Any] = {
    "bind": BIND,
    "base_dn": PEOPLE,
    "by_nickname": {"filter": "(uid={nickname})"},
    "by_card": {"filter": "(employeeNumber={card_number})"},
    "response": {"nickname": "uid", "card_number": "employeeNumber", "plan": "title"},
    "timeout": "5s",
}
"""Options of a backend, except where the server is."""


def person(uid: str, card: str, *lines: str) -> str:
    head = [f"dn: uid={uid},{PEOPLE}", "objectClass: inetOrgPerson", f"uid: {uid}", f"cn: {uid}"]
    return "\n".join([*head, f"sn: {uid}", f"employeeNumber: {card}", *lines, "", ""])


PERSONS = (
    person("alice", "4000123412341234", "title: Pro"),
    person("bob", "0012345670"),
    person("twins", "1", "title: Free", "title: Pro"),
    person("binary", "2", "jpegPhoto:: /9j/4A=="),
    person("same1", "77"),
    person("same2", "77"),
    person("disabled", "3", "employeeType: disabled"),
    person("st*r", "4"),
    person("carol", "6", "title: Pro", "uid: caroline"),
)


def require() -> None:
    pytest.importorskip("ldap", reason=not_installed("python-ldap"))
    find_tool("slapd")


@dataclass
class LdapServer:
    """One server with its own folder; ``ldap`` and ``ldaps`` have a port each."""

    folder: Path
    persons: Iterable[str] = PERSONS
    index: str = INDEX
    options: str = ""
    database: str = ""
    port: int = field(default_factory=free_port)
    tls_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        (self.folder / "db").mkdir(parents=True)
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(self.folder / "ca.pem")
        self.certify("127.0.0.1")
        client = self.authority.issue_cert("client@example.org", common_name="client")
        client.cert_chain_pems[0].write_to_path(self.folder / "client.pem")
        client.private_key_pem.write_to_path(self.folder / "client.key")
        text = _CONFIG.format(
            folder=self.folder, index=self.index, database=self.database, options=self.options
        )
        self.config.write_text(text, encoding="utf-8")
        self.load(self.persons)

    def load(self, persons: Iterable[str]) -> None:
        """Replace all entries, while it is stopped."""
        for file in (self.folder / "db").iterdir():
            file.unlink()
        ldif = self.folder / "people.ldif"
        ldif.write_text(_TREE + "".join(persons), encoding="utf-8")
        command = ["slapadd", "-q", "-f", str(self.config), "-l", str(ldif)]
        subprocess.run(command, check=True, env={"PATH": SEARCH_PATH}, capture_output=True)

    def certify(self, name: str) -> None:
        issued = self.authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(self.folder / "server.pem")
        issued.private_key_pem.write_to_path(self.folder / "server.key")

    @property
    def config(self) -> Path:
        return self.folder / "slapd.conf"

    @property
    def uri(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_uri(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    def start(self) -> None:
        urls = f"{self.uri} {self.tls_uri}"
        self.process = subprocess.Popen(
            ["slapd", "-h", urls, "-f", str(self.config), "-d", "0"],
            env={"PATH": SEARCH_PATH},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until_listens(self.process, self.tls_port)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End at once; what is not running is left as it is."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def pause(self) -> None:
        """Freeze it: connections stay open, and nothing responds."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
