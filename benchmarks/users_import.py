"""Imports of users into SQLite and PostgreSQL, next to ``sqlite3 .import`` and ``psql \\copy``.

Run it as ``python -m benchmarks.users_import --users 1000000 [--dsn URI]``. The other tools copy
rows into a table with the same indexes, and validate nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

_TABLE = (
    "CREATE TABLE {name} (nickname TEXT NOT NULL UNIQUE, card_number TEXT NOT NULL UNIQUE, "
    "plan TEXT NOT NULL, profile_url TEXT);"
)
_COMMAND = (sys.executable, "-m", "tornado_idv", "users")


@click.command()
@click.option("--users", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--dsn", help="A PostgreSQL database for new tables.")
def main(users: int, dsn: str | None) -> None:
    """Print seconds, users per second and the largest resident memory of each program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        csv = folder / "users.csv"
        with csv.open("wb") as file:
            subprocess.run([*_COMMAND, "generate", "--count", str(users)], stdout=file, check=True)
        _write_config(folder, dsn)
        runs = {"sqlite": _ours(folder, "file"), "sqlite, again": _ours(folder, "file")}
        if shutil.which("sqlite3"):
            table = _TABLE.format(name="users")
            script = ("sqlite3", "tool.db", table, ".import --csv --skip 1 users.csv users")
            runs["sqlite3 .import"] = script
        if dsn:
            _psql(dsn, *(_TABLE.format(name=name) for name in ("idv_bench", "idv_bench_tool")))
            runs |= {
                "postgres": _ours(folder, "server"),
                "postgres, again": _ours(folder, "server"),
            }
            copy = "\\copy idv_bench_tool FROM users.csv CSV HEADER"
            runs["psql \\copy"] = ("psql", "-qX", dsn, "-c", copy)
        for title, arguments in runs.items():
            _measure(title, arguments, users, folder)
        if dsn:
            _psql(dsn, "DROP TABLE idv_bench, idv_bench_tool")


def _ours(folder: Path, backend: str) -> Sequence[str]:
    return (*_COMMAND, "import", "users.csv", "--to", backend, "-c", str(folder / "config.yaml"))


def _write_config(folder: Path, dsn: str | None) -> None:
    lines = [
        "profile_sites: [https://profiles.example]",
        "backends:",
        "  - {name: file, kind: sqlite, path: users.db}",
    ]
    if dsn:
        lines.append(f"  - {{name: server, kind: postgres, dsn: '{dsn}', table: idv_bench}}")
    (folder / "config.yaml").write_text("\n".join(lines), encoding="utf-8")


def _psql(dsn: str, *statements: str) -> None:
    commands = [each for statement in statements for each in ("-c", statement)]
    subprocess.run(["psql", "-qX", dsn, *commands], check=True)


def _measure(title: str, arguments: Sequence[str], users: int, folder: Path) -> None:
    started = time.perf_counter()
    process = subprocess.Popen(arguments, cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{title}: exit code {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    print(
        f"{title:20} {seconds:6.1f} s  {users / seconds:9,.0f} users/s  "
        f"{cpu:5.1f} s CPU  {usage.ru_maxrss / 1024:5.0f} MiB"
    )


if __name__ == "__main__":
    main()
