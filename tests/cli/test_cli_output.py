"""What commands print: in any locale, about any file name, to a pipe that is closed."""

import os
import subprocess
from pathlib import Path

import pytest

from support.databases.sqlite_databases import write
from support.processes.permissions import public_directory, unprivileged
from support.processes.process import COMMAND, TIMEOUT, Invoke, command
from tornado_idv.cli import common
from tornado_idv.model import User

CONFIG = """profile_sites: [https://p.example]
backends: [{name: users, kind: sqlite, path: users.db}]
"""
ASCII = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii:strict",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with a user whose plan is in no other encoding than UTF-8."""
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    write(tmp_path / "users.db", User("Größe €", "4000", "alice"))
    return tmp_path


@pytest.mark.slow
def test_output_is_utf8_in_any_locale(folder: Path) -> None:
    """An export can be imported again."""
    done = subprocess.run(
        [*COMMAND, "users", "export", "--from", "users"],
        cwd=folder,
        env={**os.environ, **ASCII},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("utf-8").splitlines()[1].startswith("alice,4000,Größe €")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["check", "-c"], ["init", "config.yaml/"], ["serve", "-c"]])
def test_name_of_a_file_that_is_no_text_is_printed(folder: Path, arguments: list[str]) -> None:
    name = os.fsdecode(arguments[-1].encode() + b"caf\xe9\n.yaml")
    done = command(*arguments[:-1], name, cwd=folder)
    assert done.returncode in {1, 3}
    assert "caf\\udce9" in done.stderr
    assert 'File "' not in done.stderr


def test_current_folder_that_cannot_be_searched_has_no_configuration(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `runuser`, in the home of root."""
    with public_directory() as folder:
        (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        monkeypatch.setattr(common, "_IN_ETC", folder / "config.yaml")
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        monkeypatch.chdir(closed)
        assert invoke("check", "--config-only").exit_code == 0  # imports what it needs
        with unprivileged():
            done = invoke("check", "--config-only")
        closed.rmdir()
    assert (done.exit_code, done.output.splitlines()[0]) == (0, f"ok: {folder / 'config.yaml'}")


def test_current_folder_that_was_removed_is_named(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = invoke("serve", "--demo", "users.yaml")
    assert done.exit_code == 3
    assert done.stderr == "the current folder was removed; change to another one\n"
