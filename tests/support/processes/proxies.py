"""nginx, haproxy and other programs in the foreground, ended by their own id."""

import http.client
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.http.certificate import SELF_SIGNED
from support.processes.ports import listens
from support.processes.process import eventually

RIGHTS = ("    user haproxy\n", "    group haproxy\n", "    chroot /var/lib/haproxy\n")
"""Lines of haproxy's files that only root can have."""
SEARCH_PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"))


def find_tool(name: str, *folders: Path) -> str:
    """Return the path of a program; skip the test, or the module, where there is none."""
    path = shutil.which(name, path=os.pathsep.join((*map(str, folders), SEARCH_PATH)))
    if path is None:
        pytest.skip(not_installed(name), allow_module_level=True)
    return path


def not_installed(name: str) -> str:
    """Return the reason for which a test is skipped."""
    return f"{name} is not installed; `make test-tools` does it"


@contextmanager
def running_program(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """Run a program that listens on the port, with its output in the log."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        eventually(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(10)


def nginx_command(site: str, folder: Path, processes: str = "master_process off") -> list[str]:
    """Write the files of nginx with a site as in deploy/; return its command, for the foreground.

    By default it is one process, of the user of the tests, which cannot reload its files.
    """
    certificate = folder / "site.pem"
    certificate.write_text(SELF_SIGNED)
    for kind in ("crt", "key"):
        site = site.replace(f"/etc/nginx/tornado-idv.{kind}", str(certificate))
    (folder / "site.conf").write_text(site)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; {processes}; pid {folder}/nginx.pid; events {{}}\n"
        f"http {{ access_log off; include {folder}/site.conf;\n{folders}}}\n"
    )
    return [find_tool("nginx"), "-c", str(config), "-e", str(folder / "error.log")]


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Return a file with other ports and paths; each occurs once."""
    for old, new in values.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def connect(port: int, ip: str = "127.0.0.1") -> closing[http.client.HTTPSConnection]:
    """Return a connection to a proxy on loopback, with TLS."""
    context = ssl.create_default_context(cadata=SELF_SIGNED)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=10, source_address=(ip, 0), context=context
    )
    return closing(connection)
