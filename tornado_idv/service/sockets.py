"""The sockets of the listeners, and their addresses."""

import logging
import os
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tornado.netutil import bind_sockets, bind_unix_socket

from tornado_idv.admin.report import PartReport
from tornado_idv.config.address import Address
from tornado_idv.config.settings import ServerSettings, TlsSettings
from tornado_idv.errors import StartError
from tornado_idv.files import FileSignature, load_certificate

_log = logging.getLogger(__name__)
_LOST = "was removed or replaced: no client can connect; restart the service, or the .socket unit"


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


@contextmanager
def public_sockets(
    server: ServerSettings, addresses: Sequence[Address], workers: int = 1
) -> Iterator[list[list[socket.socket]]]:
    """Yield the listening sockets of each worker; raises `StartError`.

    Sockets passed by a service manager replace ``addresses``. Passed sockets and Unix sockets are
    the same for all workers. At the end the files of the Unix sockets bound here are removed.
    """
    advice = f"change {'server.listen' if server.listen else 'server.host or server.port'}"
    owner = os.environ.get("LISTEN_PID", "") if os.environ.get("LISTEN_FDS") else ""
    if owner not in ("", str(os.getpid())):
        advice = f"sockets were passed to process {owner}; run tornado-idv with exec in its script"
    passed = passed_sockets()
    bound = [[passed] * workers] if passed else []
    with ExitStack() as stack:
        for address in () if passed else addresses:
            bound.append(bind_each(advice, address, workers))
            if address.path is not None:
                own = FileSignature.of(address.path)
                stack.callback(_remove, bound[-1][0][0], address.path, own)
        yield [[*chain(*own)] for own in zip(*bound, strict=True)]


def bind(advice: str, address: Address, *, reuse_port: bool = False) -> list[socket.socket]:
    """Bind an address and return its listening sockets. Raises `StartError` with ``advice``.

    With ``reuse_port``, more sockets may be bound to the same address. Any local user with access
    to the folder of a Unix socket may connect. This is safe, because requests need a key.
    """
    try:
        if address.path is None:
            return bind_sockets(address.port, address.host, reuse_port=reuse_port)
        _require_unused(address.path)
        return [bind_unix_socket(str(address.path), 0o666)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"cannot listen on {address}: {reason}; {advice}") from None


def bind_each(advice: str, address: Address, count: int) -> list[list[socket.socket]]:
    """Return ``count`` lists of sockets on one address. Each list gets a share of the connections.

    A Unix socket is the same in all lists. Raises `StartError` if another process listens on the
    address, even if that process has set ``SO_REUSEPORT``.
    """
    probe = bind(advice, address)  # without SO_REUSEPORT
    if count == 1 or address.path is not None:
        return [probe] * count
    # With port 0, all lists need the same free port.
    address = replace(address, port=Address.of(probe[0]).port)
    for each in probe:
        each.close()
    return [bind(advice, address, reuse_port=True) for _ in range(count)]


def _require_unused(path: Path) -> None:
    """Raise `OSError` if a process listens on a Unix socket at the path."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(0)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:  # the listener's queue of connections is full
            pass
    raise FileExistsError(None, "another process listens there")


def _remove(sock: socket.socket, path: Path, own: FileSignature) -> None:
    """Close a Unix socket, and remove its file unless a new service has replaced the file."""
    sock.close()
    with suppress(OSError):
        _require_unused(path)  # a successor's file may have got the inode of ours, once removed
        if own.is_same_file(FileSignature.of(path)):
            path.unlink()


class SocketFiles:
    """Checks that the files of Unix sockets exist. A socket without a file gets no new clients.

    Without Unix sockets, ``report`` is ``None``. Keep the sockets open until the last check.
    Otherwise a new file could have the inode of a removed one, and look like it.
    """

    def __init__(self, addresses: Iterable[Address] = ()) -> None:
        paths = [each.path for each in addresses if each.path]
        # Names of the abstract namespace are not absolute.
        self._files = {path: FileSignature.find(path) for path in paths if path.is_absolute()}
        self.report = PartReport(None, time.time()) if self._files else None
        self.check()

    def check(self) -> None:
        """Check the files. Log when some are lost, and when all exist again."""
        lost = [f"unix:{path}" for path, own in self._files.items() if _is_lost(path, own)]
        error = f"{', '.join(lost)} {_LOST}" if lost else None
        if self.report and error != self.report.error:
            self.report.error, self.report.since = error, time.time()
            (_log.error if error else _log.info)("unix sockets: %s", error or "all exist again")


def _is_lost(path: Path, own: FileSignature | None) -> bool:
    """Return whether a socket file is missing or replaced. Inaccessible files count as present."""
    try:
        now = FileSignature.of(path)
    except OSError as error:
        return not isinstance(error, PermissionError)
    return own is not None and not own.is_same_file(now)


def passed_sockets() -> list[socket.socket]:
    """Return the sockets passed to this process by a service manager: `sd_listen_fds(3)`.

    Child processes do not inherit the sockets. Raises `StartError` for an unusable socket.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return [_passed(descriptor) for descriptor in range(3, 3 + int(count))]


def _passed(descriptor: int) -> socket.socket:
    with suppress(OSError):
        sock = socket.socket(fileno=descriptor)
        is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_listening and sock.type == socket.SOCK_STREAM:
            sock.set_inheritable(False)
            return sock
    raise StartError(
        f"the service manager passed file descriptor {descriptor} (LISTEN_FDS), which is no "
        "socket that listens for connections: use ListenStream= and Accept=no"
    )


def addresses_of(sockets: Iterable[socket.socket]) -> list[Address]:
    """Return the addresses of bound sockets, Unix sockets last."""
    return sorted(map(Address.of, sockets), key=lambda each: each.path is not None)
