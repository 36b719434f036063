"""Changes of files: of a secret in a file of its own, and of the signature of any file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from support.fakes.clock_and_backends import Ticker
from tornado_idv.config.load import ConfigFile
from tornado_idv.files import FileSecret, FileSignature
from tornado_idv.registry import installed_kinds, plugin_manager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n", encoding="utf-8")
    return path


def later(ticker: Ticker, secret: FileSecret) -> str:
    ticker.now += 1
    return secret.get_secret_value()


def test_a_new_text_is_read_after_a_second(path: Path, tmp_path: Path) -> None:
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    path.write_text(" second \n", encoding="utf-8")
    ticker.now += 0.999
    assert secret.get_secret_value() == "first"
    ticker.now += 0.001
    assert secret.get_secret_value() == " second "
    other = tmp_path / "other"
    other.write_text(" third  \n", encoding="utf-8")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert later(ticker, secret) == " third  "


NO_SECRET: dict[str, Callable[[Path], object]] = {
    "gone": lambda _: None,
    "empty": Path.touch,
    "line": lambda path: path.write_text("\n"),
    "binary": lambda path: path.write_bytes(b"\xff"),
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("put", NO_SECRET.values(), ids=NO_SECRET)
def test_what_holds_no_secret_keeps_the_last_one(path: Path, put: Callable[[Path], object]) -> None:
    """Reading a FIFO would block the event loop, as nothing writes to it."""
    ticker = Ticker()
    secret = FileSecret("first", path, ticker)
    assert later(ticker, secret) == "first"
    path.unlink()
    put(path)
    assert later(ticker, secret) == "first"
    path.unlink(missing_ok=True)
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
    settings = ConfigFile.read(config).load(installed_kinds(plugin_manager()), {"TOKEN": "third"})
    path.write_text("second\n", encoding="utf-8")
    assert settings.backends[0].auth.token.get_secret_value() == now  # type: ignore[attr-defined]


def test_secrets_are_equal_if_they_follow_the_same_file(path: Path, tmp_path: Path) -> None:
    secret = FileSecret("first", path)
    assert secret == FileSecret("second", path)
    assert hash(secret) == hash(FileSecret("second", path))
    assert secret != FileSecret("first", tmp_path / "other")
    assert secret != SecretStr("first")
    assert SecretStr("first") != secret


SIGNATURE = FileSignature(device=1, inode=7, size=4096, mtime_ns=1, ctime_ns=1)


def write_in_place(path: Path) -> None:
    path.write_text("other", encoding="utf-8")


def write_and_restore_time(path: Path) -> None:
    before = path.stat()
    path.write_text("other", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_over(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("alice", encoding="utf-8")
    before = path.stat()
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


@pytest.mark.parametrize(
    ("change", "same_file"),
    [(write_in_place, True), (write_and_restore_time, True), (rename_over, False)],
)
def test_a_change_of_size_5_is_seen(
    tmp_path: Path, change: Callable[[Path], None], *, same_file: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("alice", encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    before = FileSignature.of(path)
    change(path)
    after = FileSignature.of(path)
    assert after != before
    assert after.is_same_file(before) is same_file


def test_files_of_one_inode_number_on_two_devices_are_different_files() -> None:
    assert SIGNATURE.is_same_file(SIGNATURE._replace(size=8192, mtime_ns=2, ctime_ns=2))
    assert not SIGNATURE.is_same_file(SIGNATURE._replace(device=2))
    assert not SIGNATURE.is_same_file(SIGNATURE._replace(inode=8))
