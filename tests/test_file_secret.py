"""A secret that stands in a file of its own, and changes with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from support.fakes.clock_and_backends import Ticker
from tornado_idv.config.load import load
from tornado_idv.files import FileSecret
from tornado_idv.registry import installed_kinds, plugin_manager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n", encoding="utf-8")
    return path


def later(ticker: Ticker, secret: FileSecret) -> str:
    ticker.now += 1
    return secret.get_secret_value()


def test_a_new_text_is_read_after_a_second(path: Path) -> None:
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    path.write_text("second\n", encoding="utf-8")
    ticker.now += 0.999
    assert secret.get_secret_value() == "first"
    ticker.now += 0.001
    assert secret.get_secret_value() == "second"


def test_a_file_renamed_over_it_is_read(path: Path, tmp_path: Path) -> None:
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    assert later(ticker, secret) == "first"
    other = tmp_path / "other"
    other.write_text("third\n", encoding="utf-8")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert later(ticker, secret) == "third"


def test_a_fifo_in_place_of_the_file_keeps_the_last_secret(path: Path) -> None:
    """Reading it would block the event loop, as nothing writes to the FIFO."""
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    path.unlink()
    os.mkfifo(path)
    assert later(ticker, secret) == "first"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert later(ticker, secret) == "first"


def test_spaces_of_a_secret_are_kept(path: Path) -> None:
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    path.write_text(" second \n", encoding="utf-8")
    assert later(ticker, secret) == " second "


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"], ids=["gone", "empty", "line", "?"])
def test_a_file_without_a_secret_keeps_the_last_one(path: Path, content: bytes | None) -> None:
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    assert later(ticker, secret) == "first"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert later(ticker, secret) == "first"
    path.write_text("second", encoding="utf-8")
    assert later(ticker, secret) == "second"


def test_no_repr_shows_it(path: Path) -> None:
    secret = FileSecret("first", path)
    assert "first" not in repr(secret) + str(secret)


CONFIG = """\
profile_sites: [https://profiles.example]
backends:
  - {{name: other, kind: upstream, base_url: "http://x", auth: {{kind: bearer, token: "{token}"}}}}
"""


@pytest.mark.parametrize(
    ("written", "now"),
    [("${file:token}", "second"), ("${file:token}x", "firstx"), ("${env:TOKEN}", "third")],
)
def test_only_a_reference_to_a_whole_file_follows_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: str, now: str
) -> None:
    monkeypatch.setattr(FileSecret, "check_interval", 0.0)
    config = path.with_name("config.yaml")
    config.write_text(CONFIG.format(token=written), encoding="utf-8")
    settings = load(config, installed_kinds(plugin_manager()), {"TOKEN": "third"})
    path.write_text("second\n", encoding="utf-8")
    assert settings.backends[0].auth.token.get_secret_value() == now  # type: ignore[attr-defined]


def test_secrets_are_equal_if_they_follow_the_same_file(path: Path, tmp_path: Path) -> None:
    secret = FileSecret("first", path)
    assert secret == FileSecret("second", path)
    assert hash(secret) == hash(FileSecret("second", path))
    assert secret != FileSecret("first", tmp_path / "other")
    assert secret != SecretStr("first")
    assert SecretStr("first") != secret
