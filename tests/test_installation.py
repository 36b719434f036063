"""Installing: advice, the interpreter, dependencies, other systems."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import idv_ldap.options
import idv_postgres.options
import idv_redis.options

ROOT = Path(__file__).parents[1]


def declared(*extras: str) -> list[Requirement]:
    """What setup.py requires, also for extras."""
    required = map(Requirement, importlib.metadata.requires("tornado-idv") or ())
    wanted = [{"extra": each} for each in ("", *extras)]
    return [
        each for each in required if each.marker is None or any(map(each.marker.evaluate, wanted))
    ]


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ("ldap", idv_ldap.options.NOT_INSTALLED),
        ("postgres", idv_postgres.options.NOT_INSTALLED),
        ("redis", idv_redis.options.NOT_INSTALLED),
    ],
)
def test_missing_library_is_to_be_installed_for_the_interpreter_that_runs(
    extra: str, advice: str
) -> None:
    """In the versions of setup.py, also in the documents."""
    (required,) = set(declared(extra)) - set(declared())
    start, _, rest = advice.partition(" -m pip install '")
    assert start == f"{required.name} is not installed; install it with: {sys.executable}"
    assert Requirement(rest.removesuffix("'")) == Requirement(str(required).partition(";")[0])
    readme = (ROOT / "plugins" / f"idv_{extra}" / "README.md").read_text(encoding="utf-8")
    assert f"`pip install '{rest}`" in readme


def test_no_advice_names_a_package_that_is_not_published() -> None:
    """The owner of the name in a registry is not this project."""
    for folder in ("tornado_idv", "plugins", "docs", "deploy", "."):
        files = (ROOT / folder).glob("*" if folder == "." else "**/*")
        for file in files:
            if (
                file.suffix in {".py", ".md", ".sh", ".yaml", ".toml"}
                and file.name != "CHANGELOG.md"
            ):
                assert "tornado-idv[" not in file.read_text(encoding="utf-8"), file


WINDOWS = """
import asyncio, signal, subprocess, sys
del signal.pthread_sigmask
for name in ("uvloop", "fcntl", "pwd", "resource"):
    sys.modules[name] = None
import tornado_idv
from tornado_idv.cli import main
for name in tornado_idv.__all__:
    getattr(tornado_idv, name)
sys.platform = "win32"
"""
MACOS = """
import os, sys
import tornado_idv.cli.serve, tornado_idv.features.check.commands
del os.sched_getaffinity
sys.platform = "darwin"
from tornado_idv.cli import main
"""
EACH = """
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as end:
        print(command, end.code)
"""


def run_each(system: str, *commands: str, folder: Path) -> tuple[str, str]:
    """Run commands in one interpreter; return what it printed, and their exit codes."""
    line = [sys.executable, "-c", system + EACH, *commands]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_package_can_be_imported_on_windows_and_says_what_is_missing(tmp_path: Path) -> None:
    commands = ("serve", "check --json", "keys list", "users count")
    said, logged = run_each(WINDOWS, *commands, folder=tmp_path)
    assert said.splitlines() == [f"{each} 3" for each in commands]
    assert logged == len(commands) * (
        "tornado-idv does not run on Windows: uvloop and POSIX signals are missing there; run it "
        "in WSL 2 or in a container\n"
    )


@pytest.mark.slow
def test_several_workers_on_macos_are_an_error_with_its_position(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text("users: []\n")
    (tmp_path / "config.yaml").write_text(
        "profile_sites: [https://profiles.example]\nserver: {port: 0, workers: 2}\n"
        "backends: [{name: users, kind: yaml, path: users.yaml}]\n"
    )
    commands = [f"{each} --config config.yaml" for each in ("serve", "check")]
    said, logged = run_each(MACOS, *commands, folder=tmp_path)
    assert said.splitlines() == [f"{each} 1" for each in commands]
    assert logged == 2 * (
        "config.yaml:2:19: server.workers: several workers need Linux; write 1 or auto\n"
    )


def test_uvloop_is_required_except_on_windows() -> None:
    (uvloop,) = (each for each in declared() if each.name == "uvloop")
    assert uvloop.marker is not None
    assert uvloop.marker.evaluate({"sys_platform": "darwin"})
    assert not uvloop.marker.evaluate({"sys_platform": "win32"})


INTERPRETER = """\
#!/bin/sh
case "$1 $2" in
"-c "*) case {version} in 3.10*) exit 1;; esac; echo {version};;
"-m venv") rm -rf $4; mkdir -p $4/bin; cp $0 $4/bin/python; test {version} != 3.99;;
"-m pip") echo {version} >> installed;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_installs_for_the_interpreter_that_is_named(tmp_path: Path) -> None:
    for version in ("3.10", "3.11", "3.12", "3.99"):
        file = tmp_path / ("python3" if version == "3.11" else f"python{version}")
        file.write_text(INTERPRETER.format(version=version))
        file.chmod(0o755)
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {each: os.environ[each] for each in os.environ if each != "PYTHON"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    installed = tmp_path / "installed"

    def make(python: str = "") -> tuple[str, list[str]]:
        """Return what is printed, and for which versions something was installed."""
        installed.write_text("")
        named = [f"PYTHON={python}"] if python else []
        line = ["make", "--silent", ".venv/.run", *named]
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout, installed.read_text().split()

    refused = "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 .venv/.run\n"
    assert make("python3.10") == (refused, [])
    assert make() == ("", ["3.11"])
    assert make() == make("python3") == ("", [])
    assert make("python3.12") == ("", ["3.12"])
    assert make() == make("python3.12") == ("", [])
    assert make("python3.10") == make("./no-such-python") == (refused, [])
    assert make() == ("", [])
    shown, _ = make("python3.99")
    assert shown == "Python's venv module is missing; on Debian: apt-get install python3-venv\n"
    assert not (tmp_path / ".venv").exists()
    assert make() == ("", ["3.11"])
    shutil.copy(tmp_path / "python3.10", tmp_path / ".venv" / "bin" / "python")
    assert make() == ("", ["3.11"])
