"""With `server.watch_config` the service follows the files that its configuration names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest
import trustme

from support.processes.process import eventually, running
from support.processes.service import Client, lookup_request, open_socket, write_config
from tornado_idv.keys.token import issue

pytestmark = pytest.mark.slow

OLD, NEW = issue("shop"), issue("shop")
CONFIG = """\
profile_sites: [https://profiles.example]
server: {{port: 0, watch_config: true, {server}}}
auth:
  keys: [{{id: shop, sha256: "${{file:secret/shop.sha256}}"}}]
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""


def mount(folder: Path, **files: str) -> None:
    """Write a Secret as Kubernetes does: links through ``..data``, which is replaced at once."""
    folder.mkdir(exist_ok=True)
    version = folder / f"..{len([*folder.iterdir()])}"
    version.mkdir()
    for name, text in files.items():
        (version / name.replace("_", ".")).write_text(text)
        if not (folder / name.replace("_", ".")).is_symlink():
            (folder / name.replace("_", ".")).symlink_to(f"..data/{name.replace('_', '.')}")
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def status(port: int, token: str) -> int:
    (reply,) = Client(port).raw(lookup_request("@alice", token))
    return reply.status


def test_rotated_secret_is_effective_without_a_restart(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.format(server="workers: 2"))
    mount(tmp_path / "secret", shop_sha256=digest(OLD))
    with running(config) as service:
        assert (status(service.port, OLD), status(service.port, NEW)) == (200, 401)
        mount(tmp_path / "secret", shop_sha256="no digest")
        eventually(lambda: "configuration not reloaded" in service.read_log())
        assert status(service.port, OLD) == 200
        mount(tmp_path / "secret", shop_sha256=digest(NEW))
        for _ in range(4):  # of several workers, which get connections at random
            eventually(lambda: (status(service.port, OLD), status(service.port, NEW)) == (401, 200))


def test_secret_that_was_missing_in_a_reload_is_read_when_it_is_there(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.format(server="").replace("secret/", ""))
    (tmp_path / "shop.sha256").write_text(digest(OLD))
    with running(config) as service:
        config.write_text(CONFIG.format(server="").replace("secret/", "new-"))
        eventually(lambda: "configuration not reloaded" in service.read_log())
        (tmp_path / "new-shop.sha256").write_text(digest(NEW))
        eventually(lambda: status(service.port, NEW) == 200)
        assert status(service.port, OLD) == 401


def test_renewed_certificate_is_effective_without_a_restart(tmp_path: Path) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    tls = "tls: {cert_file: tls/tls.crt, key_file: tls/tls.key}"
    config = write_config(tmp_path, CONFIG.format(server=tls).replace("secret/", ""))
    (tmp_path / "shop.sha256").write_text(digest(OLD))
    mount(tmp_path / "tls", **issued(authorities[0]))
    with running(config) as service:
        assert is_trusted(service.port, authorities[0])
        mount(tmp_path / "tls", **issued(authorities[1]))
        eventually(lambda: is_trusted(service.port, authorities[1]))


def issued(authority: trustme.CA) -> Mapping[str, str]:
    certificate = authority.issue_cert("localhost")
    (chain,) = certificate.cert_chain_pems
    return {
        "tls_crt": chain.bytes().decode(),
        "tls_key": certificate.private_key_pem.bytes().decode(),
    }


def is_trusted(port: int, authority: trustme.CA) -> bool:
    """Return whether the certificate of the service is of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the authorities of the system
    authority.configure_trust(context)
    try:
        with open_socket(port) as sock, context.wrap_socket(sock, server_hostname="localhost"):
            return True
    except ssl.SSLCertVerificationError:
        return False
