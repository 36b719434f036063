"""A real Active Directory: the domain controller of Samba, on an address of the loopback network.

Its ports are fixed, so that each controller has an address of its own; no network namespace is
needed. It runs its LDAP server alone.
"""

import base64
import inspect
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from support.databases.kept_files import make_or_copy
from support.processes.ports import wait_until_listens
from support.processes.proxies import SEARCH_PATH, find_tool, not_installed

DOMAIN = "corp.example.org"
BASE = "DC=corp,DC=example,DC=org"
STAFF = f"OU=staff,{BASE}"
ACCOUNT = f"idv@{DOMAIN}"
PASSWORD = "s3cret-Canary!"
THRESHOLD = 5
"""Bad passwords that lock an account."""
ENABLED, DISABLED = 544, 546
_GUIDS = {
    "employeeNumber": "a8df73ef-c5ea-11d1-bbcb-0080c76670c0",
    "employeeType": "a8df73f0-c5ea-11d1-bbcb-0080c76670c0",
    "userAccountControl": "bf967a68-0de6-11d0-a285-00aa003049e2",
    "user": "bf967aba-0de6-11d0-a285-00aa003049e2",
}
_CONFIG = """\
[global]
netbios name = DC1
realm = {realm}
workgroup = CORP
server role = active directory domain controller
server services = ldap
interfaces = {address}/8
bind interfaces only = yes
private dir = {folder}/private
lock directory = {folder}
state directory = {folder}/state
cache directory = {folder}/cache
pid directory = {folder}/run
ncalrpc dir = {folder}/run/ncalrpc
winbindd socket directory = {folder}/run/winbindd
ntp signd socket directory = {folder}/run/ntp
log file = {folder}/log
tls certfile = {folder}/server.pem
tls keyfile = {folder}/server.key
tls cafile = {folder}/ca.pem
dsdb:schema update allowed = yes
"""
_INDEX = f"""\
dn: CN=Employee-Number,CN=Schema,CN=Configuration,{BASE}
changetype: modify
replace: searchFlags
searchFlags: 1

"""
_TREE = f"""\
dn: {BASE}
changetype: modify
replace: lockoutThreshold
lockoutThreshold: {THRESHOLD}
-
replace: maxPwdAge
maxPwdAge: 0

"""


def require() -> None:
    pytest.importorskip("ldap", reason=not_installed("python-ldap"))
    for tool in ("samba", "samba-tool", "ldbmodify", "ldbsearch"):
        find_tool(tool)
    if not Path("/usr/share/samba/setup/ad-schema").is_dir():
        pytest.skip(not_installed("the schema of Samba"), allow_module_level=True)
    if os.geteuid() != 0:
        pytest.skip("a domain controller of Samba needs root", allow_module_level=True)


def unit(dn: str) -> str:
    return f"dn: {dn}\nchangetype: add\nobjectClass: organizationalUnit\n\n"


def account(
    name: str,
    *lines: str,
    card: str = "",
    control: int = ENABLED,
    parent: str = STAFF,
    kind: str = "user",
) -> str:
    """Return an account in LDIF; without a password, unless ``lines`` have one."""
    head = [f"dn: CN={name},{parent}", "changetype: add", f"objectClass: {kind}"]
    head += [f"sAMAccountName: {name}", f"userAccountControl: {control}"]
    head += [f"employeeNumber: {card}"] if card else []
    return "\n".join([*head, *lines, "", ""])


@dataclass
class ActiveDirectory:
    folder: Path
    address: str
    entries: Iterable[str] = ()
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.entries = [*self.entries]
        version = self._run("samba", "--version")
        make_or_copy(
            self.folder,
            (version, inspect.getsource(ActiveDirectory), _TREE, self.entries),
            self._make,
        )
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        issued = authority.issue_cert(self.address)
        issued.cert_chain_pems[0].write_to_path(self.folder / "server.pem")
        issued.private_key_pem.write_to_path(self.folder / "server.key")
        (self.folder / "server.key").chmod(0o600)  # Samba refuses to read it otherwise
        self._write_config()

    def _make(self) -> None:
        self.folder.mkdir()
        self._run(
            *("samba-tool", "domain", "provision", "--server-role=dc", "--dns-backend=NONE"),
            *(f"--realm={DOMAIN.upper()}", "--domain=CORP", f"--adminpass={PASSWORD}"),
            *(f"--targetdir={self.folder}", "--host-name=dc1", "--host-ip=127.0.0.1"),
            "--use-rfc2307",
            # Without CAP_SYS_ADMIN, as in a container, and on any file system.
            "--option=vfs objects = dfs_samba4 acl_xattr xattr_tdb",
            f"--option=xattr_tdb:file = {self.folder}/xattr.tdb",
        )
        (self.folder / "run").mkdir()
        self._write_config()
        quoted = base64.b64encode(f'"{PASSWORD}"'.encode("utf-16-le")).decode()
        service = account(
            "idv",
            f"userPrincipalName: {ACCOUNT}",
            f"unicodePwd:: {quoted}",
            control=512,
            parent=f"CN=Users,{BASE}",
        )
        self.modify(_INDEX)
        self.modify(_TREE, unit(STAFF), service, *self.entries)

    def _write_config(self) -> None:
        config = _CONFIG.format(folder=self.folder, address=self.address, realm=DOMAIN.upper())
        self._config.write_text(config, encoding="utf-8")

    @property
    def _config(self) -> Path:
        return self.folder / "etc" / "smb.conf"

    @property
    def uri(self) -> str:
        return f"ldaps://{self.address}"

    @property
    def bad_passwords(self) -> int:
        """The number of bad passwords of the service's account that the controller has counted."""
        (count,) = self.values("(sAMAccountName=idv)", "badPwdCount") or ["0"]
        return int(count)

    def allow_reading(self, unit: str, *attributes: str) -> None:
        """Allow the service's account to read attributes of the users in a unit."""
        (sid,) = self.values("(sAMAccountName=idv)", "objectSid")
        user = _GUIDS["user"]
        self._run(
            *("samba-tool", "dsacl", "set", "--action=allow", f"--objectdn={unit}"),
            "--sddl=" + "".join(f"(OA;CIIO;RP;{_GUIDS[each]};{user};{sid})" for each in attributes),
            *("-H", f"{self.folder}/private/sam.ldb", f"--configfile={self._config}"),
        )

    @contextmanager
    def hardened(self) -> Iterator[None]:
        """Take the rights of a domain's members to read their users' data.

        A server applies it when a client binds again.
        """
        dn = f"CN=Pre-Windows 2000 Compatible Access,CN=Builtin,{BASE}"
        member = f"member: CN=S-1-5-11,CN=ForeignSecurityPrincipals,{BASE}\n\n"
        change = f"dn: {dn}\nchangetype: modify\n{{}}: member\n{member}"
        self.modify(change.format("delete"))
        try:
            yield
        finally:
            self.modify(change.format("add"))

    def modify(self, *changes: str) -> None:
        self._ldb("ldbmodify", stdin="".join(changes))

    def values(self, filter_: str, attribute: str) -> list[str]:
        output = self._ldb("ldbsearch", "-b", BASE, filter_, attribute)
        return re.findall(rf"^{attribute}: (.*)$", output, re.MULTILINE)

    def _ldb(self, tool: str, *arguments: str, stdin: str = "") -> str:
        options = f"--configfile={self._config}", "-H", f"{self.folder}/private/sam.ldb"
        return self._run(tool, *options, *arguments, stdin=stdin)

    def _run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            command,
            input=stdin.encode(),
            capture_output=True,
            check=False,
            env={"PATH": SEARCH_PATH, "HOME": str(self.folder.parent)},
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["samba", "--foreground", "--model=standard", f"--configfile={self._config}"],
            env={"PATH": SEARCH_PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until_listens(self.process, 636, self.address)

    def stop(self) -> None:
        """End it at once, with the processes of its connections."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            self.process = None
