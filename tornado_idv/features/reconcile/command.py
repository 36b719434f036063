"""The command ``tornado-idv reconcile``."""

import os
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from time import time
from typing import Any, get_args

import click

from tornado_idv.cli.common import (
    RefusedError,
    examples,
    exit_on_error,
    failure,
    json_option,
    print_json,
)
from tornado_idv.cli.standard_streams import print_message
from tornado_idv.client import Client
from tornado_idv.errors import IdvError, StartError
from tornado_idv.features.reconcile.accounts import AccountReader, By
from tornado_idv.features.reconcile.run import MAX_PRINTED, Run
from tornado_idv.features.reconcile.state import State, UndeterminedError, locked
from tornado_idv.interfaces.command_tools import Exit, printable
from tornado_idv.kit.files import delimiter_option, open_source, replaced_file, rows_with_progress
from tornado_idv.kit.option_values import Share, parsed_by
from tornado_idv.units import format_duration, parse_duration

_KEY = "TORNADO_IDV_KEY"


def _bound(flag: str, default: str, text: str) -> Callable[[Any], Any]:
    """Return a click option. Its value is a `Share`: a number of accounts or a percentage."""
    return click.option(flag, default=default, callback=parsed_by(Share.parse), help=text)


@click.command(
    epilog=examples(
        "reconcile users.csv --url https://idv.example --key-file key --column id --state s"
    )
)
@click.argument("accounts", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--url", required=True, envvar="TORNADO_IDV_URL", help="URL of the service.")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    show_default="the key in $TORNADO_IDV_KEY",
    help="File with the key.",
)
@click.option(
    "--column",
    show_default="each line is an identifier",
    help="Column of CSV, or member of JSON Lines, with the identifier.",
)
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="input",
    help="Kind of identifiers. input: @nickname or profile URL. nickname: with or without @.",
)
@delimiter_option
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path),
    help="File that keeps the absent users between runs.",
)
@click.option(
    "--grace",
    default="3d",
    callback=parsed_by(parse_duration),
    help="List an account only if its user was absent for this time.",
)
@click.option(
    "--min-runs",
    type=click.IntRange(1),
    default=3,
    help="List an account only after this many runs without its user (always 1 with --grace 0s).",
)
@_bound(
    "--max-gone",
    "5%",
    "Refuse a run with more gone accounts than this number or percentage of determined accounts.",
)
@_bound(
    "--max-undetermined",
    "1%",
    "Refuse a run with more undetermined accounts than this, as a number or a percentage.",
)
@_bound(
    "--max-invalid",
    "1%",
    "Refuse a list with more invalid identifiers than this, as a number or a percentage.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 10),
    default=3,
    help="Maximum number of repeated lookups of an undetermined account.",
)
@click.option(
    "--confirm-after",
    default="40s",
    callback=parsed_by(parse_duration),
    help="Pause before a second lookup of accounts that may be deleted; 0s for no second lookup.",
)
@click.option(
    "--deadline",
    default="10s",
    callback=parsed_by(parse_duration),
    help="Maximum time per request, including waits for rate limits.",
)
@click.option(
    "--must-exist", multiple=True, help="Refuse the run if this user is not found; may be repeated."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    show_default="standard output",
    help="File for the rows of accounts that may be deleted.",
)
@json_option
def reconcile(
    *,
    accounts: str,
    url: str,
    key_file: Path | None,
    column: str | None,
    by: By,
    delimiter: str,
    state_file: Path | None,
    grace: float,
    min_runs: int,
    max_gone: Share,
    max_undetermined: Share,
    max_invalid: Share,
    must_exist: tuple[str, ...],
    retries: int,
    confirm_after: float,
    deadline: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """List accounts whose users do not exist.

    ACCOUNTS is CSV, JSON Lines, or a file with one identifier per line; - is standard input. The
    command writes the rows of accounts that may be deleted. An account may be deleted if its user
    was absent in all runs during the last --grace, and in at least --min-runs runs. --state stores
    absences between runs. Before a row is written, its user is looked up a second time.

    Exit codes: 0 the list is complete, even if empty; 1 --max-gone or --max-invalid is exceeded, a
    user of --must-exist is not found, or --state is for another list; 2 wrong use; 3 too many
    accounts could not be determined, a backend has failed, the clocks of this machine and the
    service differ, or another run uses --state. With 1, 2 and 3 no list is written.
    """
    if column is None and accounts.endswith((".csv", ".jsonl", ".ndjson")):
        raise click.UsageError("CSV and JSON Lines need --column")
    if state_file is None and grace:
        raise click.UsageError("--grace needs --state FILE, to keep the absent users between runs")
    if as_json and output is None:
        raise click.UsageError("--json needs --output FILE for the rows")
    files = [os.path.realpath(each) for each in (accounts, key_file, state_file, output) if each]
    if len(set(files)) < len(files):
        raise click.UsageError("ACCOUNTS, --key-file, --state and --output must be different files")
    run: Run | None = None

    def record(error: IdvError) -> dict[str, object]:
        return {**failure(error), **(run.record() if run else {})}

    codes = {RefusedError: Exit.NO, UndeterminedError: Exit.UNDETERMINED}
    with (
        exit_on_error(Exit.WRONG_USE, as_json=as_json, record=record, other_codes=codes),
        closing(_client(url, key_file, deadline)) as client,
        open_source(accounts) as source,
        locked(state_file) if state_file else nullcontext(),
    ):
        before = State.load(state_file, column or "", time()) if state_file else State("", {}, ())
        reader = AccountReader(source, accounts, column, by, delimiter)
        run = Run(client, before, by_card=by == "card", grace=grace, min_runs=min_runs)
        try:
            run.require_users(must_exist)
            run.ask(rows_with_progress(iter(reader), source, "Asking"), retries)
            run.check(max_gone, max_undetermined, max_invalid)
            if confirm_after and run.rows and sys.stderr.isatty():
                wait = format_duration(confirm_after)
                print_message(f"{len(run.rows):,} users: second lookup in {wait}")
            run.confirm(confirm_after, retries)
            run.check(max_gone, max_undetermined, max_invalid)
            run.require_users(must_exist)
            _write(run, reader.header, state_file, output)
        except RefusedError:
            if state_file and before.sample:  # users who were found are no longer in `before.gone`
                with replaced_file(state_file) as file:
                    before.write(file)
            raise
    _report(run, output, as_json=as_json)


def _client(url: str, key_file: Path | None, deadline: float) -> Client:
    if key_file is None and not os.environ.get(_KEY):
        raise StartError(f"no key: name its file with --key-file, or set ${_KEY}")
    try:
        key = key_file.read_text("utf-8").strip() if key_file else os.environ[_KEY]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise StartError(f"{key_file}: cannot be read: {reason}") from None
    try:
        return Client(url, key, deadline=deadline)
    except ValueError as error:
        raise StartError(str(error)) from None


def _write(run: Run, header: str, state_file: Path | None, output: Path | None) -> None:
    """Write the output and the state to temporary files. Replace the output first, then the state.

    If the process ends between the replacements, the next run lists the same accounts again.
    """
    with (
        replaced_file(state_file) if state_file else nullcontext() as state,
        replaced_file(output, keeps_rights=True) if output else nullcontext(sys.stdout) as rows,
    ):
        if state is not None:
            run.state.write(state)
            state.flush()
        rows.writelines([header, *run.rows])
        rows.flush()


def _report(run: Run, output: Path | None, *, as_json: bool) -> None:
    record = run.record()
    if as_json:
        print_json({"ok": True, **record})
        return
    lines = [
        "{accounts:,} accounts: {found:,} found, {gone:,} gone, {invalid:,} invalid,"
        " {undetermined:,} undetermined".format_map(record),
        f"{record['deletable']:,} may be deleted" + (f": {output}" if output else ""),
    ]
    if waiting := record["waiting"]:
        first = min(each["deletable_from"] for each in waiting)
        lines.append(f"{len(waiting):,} wait for --grace or --min-runs, at least until {first}")
    lines += [
        "line {line}: not a valid identifier: {identifier}".format_map(each)
        for each in record["invalid_identifiers"][:MAX_PRINTED]
    ]
    for line in lines:
        print_message(printable(line))
