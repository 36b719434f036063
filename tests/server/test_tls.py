"""The service behind a certificate of its own."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from pathlib import Path

import pytest
from certificate import SELF_SIGNED
from serving import CONFIG, FIXTURE, KEY, serving

from tornado_idv.errors import StartError

TLS = "server: {port: 0, tls: {cert_file: tls.pem, key_file: tls.pem}}"
BACKENDS = "  - {name: users, kind: yaml, path: users.yaml}\n"


def configured(folder: Path, pem: str) -> str:
    """Writes the fixture and the certificate; gives the configuration that names them."""
    (folder / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    (folder / "tls.pem").write_text(pem, encoding="utf-8")
    lines = [TLS if line.startswith("server:") else line for line in CONFIG.splitlines()]
    return "\n".join([*lines, BACKENDS])


def test_a_user_is_found_over_tls(tmp_path: Path) -> None:
    with serving(configured(tmp_path, SELF_SIGNED), tmp_path) as service:
        assert service.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls.pem"))
        caller = http.client.HTTPSConnection("127.0.0.1", service.port, context=trust, timeout=10)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        for _ in range(2):  # the connection is kept
            caller.request("POST", "/api/v1/identify/url", '{"input": "@alice"}', headers)
            answer = caller.getresponse()
            assert (answer.status, json.load(answer)["nickname"]) == (200, "@alice")
        caller.close()


def test_a_caller_without_tls_gets_no_answer(tmp_path: Path) -> None:
    with (
        serving(configured(tmp_path, SELF_SIGNED), tmp_path) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=10) as caller,
    ):
        caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/" not in caller.recv(1000)


@pytest.mark.parametrize("pem", ["", "nonsense", SELF_SIGNED[:300]], ids=["empty", "no PEM", "cut"])
def test_a_certificate_that_does_not_serve_is_told(tmp_path: Path, pem: str) -> None:
    with (
        pytest.raises(StartError, match="cannot be used for TLS"),
        serving(configured(tmp_path, pem), tmp_path),
    ):
        pass


def test_a_certificate_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    """Loading it would block for ever, as nothing writes to it."""
    text = configured(tmp_path, SELF_SIGNED)
    (tmp_path / "tls.pem").unlink()
    os.mkfifo(tmp_path / "tls.pem")
    with (
        pytest.raises(StartError, match=r"tls\.pem: cannot be read: not a regular file$"),
        serving(text, tmp_path),
    ):
        pass
