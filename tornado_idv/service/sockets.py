"""The sockets of the listeners, and their addresses."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import stat
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tornado.netutil import bind_sockets

from tornado_idv.config.address import Address
from tornado_idv.config.settings import ServerSettings, TlsSettings
from tornado_idv.errors import StartError
from tornado_idv.files import FileSignature, load_certificate

_log = logging.getLogger(__name__)


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the server's TLS context: TLS 1.2 with AEAD cipher suites, or TLS 1.3.

    Raises `StartError` unless the files hold a certificate and its unencrypted key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings.cert_file, settings.key_file)
    return context


_FIRST_DESCRIPTOR = 3
"""Of those that a service manager passes (sd_listen_fds(3))."""


class Listener(NamedTuple):
    """A socket that listens, and its address."""

    address: Address
    sock: socket.socket


@contextmanager
def public_listeners(
    server: ServerSettings,
    addresses: Sequence[Address],
    passed: Sequence[Listener] = (),
    workers: int = 1,
) -> Iterator[list[list[Listener]]]:
    """Yield the listeners of each worker; raises `StartError`.

    Those that a service manager ``passed`` take the place of ``addresses``. They and Unix sockets
    are the same for all workers. At the end the files of Unix sockets that were bound are removed.
    """
    setting = "server.listen" if server.listen else "server.host or server.port"
    listeners: list[list[Listener]] = [[] for _ in range(workers)]
    common = list(passed)
    if passed:
        shown = ", ".join(str(each.address) for each in passed)
        _log.info("using sockets of the service manager in place of %s: %s", setting, shown)
    with ExitStack() as stack:
        for address in () if passed else addresses:
            if (path := address.path) is not None:
                common.append(Listener(address, _bind_path(setting, path)))
                stack.callback(_remove_own, path, FileSignature.find(path))
                continue
            bound = bind_each(setting, address.host, address.port, workers)
            for own, sockets in zip(listeners, bound, strict=True):
                real = replace(address, port=port_of(sockets))
                own += [Listener(real, each) for each in sockets]
        yield [[*own, *common] for own in listeners]


def bind(setting: str, host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets that listen on an address; raises `StartError`, which names the setting.

    With ``reuse_port``, further ones may be bound to the same address.
    """
    try:
        return bind_sockets(port, host, reuse_port=reuse_port)
    except OSError as error:
        reason = error.strerror or error
        raise StartError(
            f"cannot listen on {host} port {port}: {reason}; change {setting}"
        ) from None


def bind_each(setting: str, host: str, port: int, count: int) -> list[list[socket.socket]]:
    """Return ``count`` times sockets on one address, of which each gets a share of the connections.

    They listen from now on. Raises `StartError`, also if another process listens there: any
    further socket could be bound beside its own (``SO_REUSEPORT``).
    """
    probe = bind(setting, host, port)
    if count == 1:
        return [probe]
    port = port_of(probe)
    for each in probe:
        each.close()
    return [bind(setting, host, port, reuse_port=True) for _ in range(count)]


def _bind_path(setting: str, path: Path) -> socket.socket:
    """Return a Unix socket that listens; raises `StartError`.

    The socket of a process that has ended is replaced. Any user who may enter the folder may
    connect, as to a port: clients have keys.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        sock.bind(str(path))
        path.chmod(0o666)
        sock.listen()
    except OSError as error:
        sock.close()
        reason = error.strerror or error
        raise StartError(f"cannot listen on unix:{path}: {reason}; change {setting}") from None
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a Unix socket on which no process listens; raises `OSError` for anything else."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(None, "there is a file that is not a socket")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(0)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
            except BlockingIOError:  # it has no room for another connection now
                pass
        raise FileExistsError(None, "another process listens there")


def _remove_own(path: Path, created: FileSignature | None) -> None:
    """Remove the file of a Unix socket, unless it is that of another process by now."""
    found = FileSignature.find(path)
    # Without the last member, since an operator may have changed the owner.
    if found is not None and created is not None and found[:-1] == created[:-1]:
        with suppress(OSError):
            path.unlink()


def passed_listeners(environ: MutableMapping[str, str] = os.environ) -> list[Listener]:
    """Return the sockets that a service manager passes to this process: `sd_listen_fds(3)`.

    They are not for its children. Raises `StartError` for a socket that cannot serve.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return [_passed(_FIRST_DESCRIPTOR + i) for i in range(int(count))]


def _passed(descriptor: int) -> Listener:
    try:
        sock = socket.socket(fileno=descriptor)
        is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        is_listening = 0
    if not is_listening or sock.type != socket.SOCK_STREAM:
        raise StartError(
            f"the service manager passed file descriptor {descriptor} (LISTEN_FDS), which is no "
            "socket that listens for connections: use ListenStream= and Accept=no"
        )
    sock.set_inheritable(False)
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return Listener(Address(path=Path(os.fsdecode(name).replace("\0", "@"))), sock)
    return Listener(Address(*name[:2]), sock)


def addresses_of(listeners: Iterable[Listener]) -> tuple[Address, ...]:
    """Return the addresses, Unix sockets last; a host name may have several sockets."""
    addresses = dict.fromkeys(each.address for each in listeners)
    return tuple(sorted(addresses, key=lambda each: each.path is not None))


def port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the port of bound sockets."""
    return int(sockets[0].getsockname()[1])
