"""The commands ``tornado-idv users``, except for ``compare``."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from decimal import Decimal
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import click

from tornado_idv.cli.backends import backend_named, reporting
from tornado_idv.cli.common import (
    backend_option,
    config_option,
    counted,
    examples,
    json_option,
    report,
    show,
)
from tornado_idv.features import FEATURES
from tornado_idv.features.users.compare import compare
from tornado_idv.features.users.formats import Format, format_of, read_rows, write_users
from tornado_idv.features.users.import_users import Import
from tornado_idv.features.users.rows import importable
from tornado_idv.features.users.stores import Stores
from tornado_idv.identifiers import FIELDS
from tornado_idv.kit.files import delimiter_option, open_source, replaced_file, rows_with_progress
from tornado_idv.kit.option_values import Share, parsed_by
from tornado_idv.lookup.canary import canaries_of
from tornado_idv.model import User
from tornado_idv.units import parse_percentage

_PLANS = ("Free", "Pro", "Team")
_CARDS = 10**16
_STEP = 6_180_339_887_498_949
"""Step between generated card numbers. It is coprime to `_CARDS`, so no number repeats."""
_NAMES = ("ana", "ben", "chen", "dora", "emil", "fay", "goran", "hana", "ivo", "june")


def generated_users(count: int, seed: int) -> Iterator[User]:
    """Yield random users with unique nicknames and unique card numbers, in no particular order."""
    chooser = random.Random(seed)  # noqa: S311 no secret
    first = chooser.randrange(_CARDS)
    for number in range(count):
        name = _NAMES[int(chooser.random() * len(_NAMES))]
        card = (first + number * _STEP) % _CARDS
        plan = _PLANS[int(chooser.random() * len(_PLANS))]
        yield User(plan, f"{card:016d}", f"{name}{card % 7}_{number:07d}")


def _format_option(help_text: str) -> Callable[[Any], Any]:
    return click.option("--format", "form", type=click.Choice(get_args(Format)), help=help_text)


def _columns(_context: object, _parameter: object, pairs: Sequence[str]) -> dict[str, str]:
    """Return the column name for each field, from the values of ``--map``."""
    columns = {field: field for field in FIELDS}
    for pair in pairs:
        column, _, field = pair.rpartition("=")
        if not column or field not in columns:
            raise click.UsageError(f"--map: write COLUMN=FIELD; the fields are {', '.join(FIELDS)}")
        columns[field] = column
    return columns


def _encoding(name: str) -> str:
    try:
        "".encode(name)
    except LookupError:
        raise ValueError("unknown encoding; write one such as utf-8, cp1252 or utf-16") from None
    return name


@click.group()
def users() -> None:
    """Import, export, count and compare the users of backends.

    NAME is a backend of config.yaml of the kind sqlite or postgres.

    Exit codes: 0 done; 1 refused (nothing was changed), or compare found differences; 2 wrong use;
    3 an error, such as an unreachable database. After exit code 3, nothing was changed, unless the
    message reports that the result is unknown.
    """


users.add_command(compare)


@users.command(
    "import",
    epilog=examples(
        "users import users.csv --to users",
        "users import members.csv --to users --map login=nickname --merge",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@backend_option("--to")
@_format_option("The format of FILE.  [default: by its extension]")
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="COLUMN=FIELD",
    callback=_columns,
    help="Read FIELD from COLUMN of FILE; may be repeated.",
)
@click.option("--merge", is_flag=True, help="Keep the users that are not in FILE.")
@delimiter_option
@click.option(
    "--max-rejected",
    metavar="N|P%",
    callback=parsed_by(Share.parse),
    help="Change nothing if more rows than this are rejected.  "
    "[default: 1%, but no row of a user who is not stored]",
)
@click.option(
    "--max-removed",
    metavar="PERCENT",
    callback=parsed_by(parse_percentage),
    help="Change nothing if more stored users than this would be removed.  [default: 2%]",
)
@click.option(
    "--expect-rows",
    type=click.IntRange(0),
    metavar="N",
    help="Change nothing unless FILE has N rows.",
)
@click.option(
    "--encoding",
    metavar="NAME",
    default="utf-8",
    callback=parsed_by(_encoding),
    help="The encoding of FILE, such as cp1252 or utf-16.",
)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing. Write planned changes to FILE.changes."
)
@config_option
@json_option
def import_users(
    *,
    file: str,
    name: str,
    form: Format | None,
    columns: Mapping[str, str],
    merge: bool,
    delimiter: str,
    max_rejected: Share | None,
    max_removed: Decimal | None,
    expect_rows: int | None,
    encoding: str,
    dry_run: bool,
    config_path: Path,
    as_json: bool,
) -> None:
    """Replace all users of a backend by the users in FILE.

    FILE may be - for standard input. Its fields are nickname, card_number, plan and, optionally,
    profile_url. Invalid rows are rejected: FILE.rejected lists their line numbers and reasons, and
    their users stay unchanged. All other rows become visible together. After an error or an
    interruption, nothing is changed.

    The command refuses a list that looks truncated or wrong. It also refuses a list with a rejected
    row whose user is not stored yet. See --max-rejected and --max-removed.
    """
    form = form or format_of(file)
    if form is None:
        raise click.UsageError("the format of FILE is not known; add --format csv, jsonl or yaml")
    with reporting(name, as_json=as_json):
        stores = Stores(config_path)
        store = stores.store(name)
        options = backend_named(stores.backends, name)
        canaries = canaries_of(options)

        def change() -> None:
            for place in filter(None, (each.users_changed for each in FEATURES)):
                resolve_name(place)(options)

        job = Import(file, max_rejected, max_removed, expect_rows, canaries, merge, dry_run, change)
        with open_source(file, encoding) as text:
            listed = read_rows(text, form, job.source, columns, delimiter)
            with closing(rows_with_progress(listed, text, "Importing")) as rows:
                result, notes = job.run(rows, stores.identifiers, store)
        done = (
            f"{'Would import' if dry_run else 'Imported'} {counted(result.imported, 'user')} "
            f"into {name}: {result.added:,} added, {result.updated:,} updated, "
            f"{result.removed:,} removed."
        )
        if dry_run:
            done = f"{done}\nThis was a dry run: nothing was changed; see {job.beside('changes')}."
        record = {"ok": True, "dry_run": dry_run, **result._asdict(), "notes": notes}
        report("\n".join([done, *notes]), record, as_json=as_json)


@users.command(epilog=examples("users export --from users users.csv"))
@backend_option("--from")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@_format_option("The format.  [default: by the extension of FILE, or csv]")
@config_option
def export(*, name: str, file: str, form: Format | None, config_path: Path) -> None:
    """Write all users of a backend to FILE, by default to standard output.

    Users are sorted by nickname. The export fails if an import would reject one of the users. After
    an error, FILE is unchanged.
    """
    form = form or format_of(file) or "csv"
    with reporting(name):
        stores = Stores(config_path)
        with stores.records(name) as stored:
            records = importable(stored, stores.identifiers)
            with nullcontext(sys.stdout) if file == "-" else replaced_file(Path(file)) as text:
                write_users(text, form, records)


@users.command("count", epilog=examples("users count --from users"))
@backend_option("--from")
@config_option
@json_option
def count_users(*, name: str, config_path: Path, as_json: bool) -> None:
    """Print the number of users of a backend."""
    with reporting(name, as_json=as_json):
        number = Stores(config_path).store(name).count()
    show({"backend": name, "users": number}, [str(number)], as_json=as_json)


@users.command(epilog=examples("users generate --count 1000 > users.csv"))
@click.option(
    "--count", "number", type=click.IntRange(0, 10**9), required=True, help="The number of users."
)
@click.option("--seed", type=int, default=1, help="Seed of the random users.")
@_format_option("The format.  [default: csv]")
def generate(*, number: int, seed: int, form: Format | None) -> None:
    """Print random users for tests. The same --seed prints the same users."""
    write_users(sys.stdout, form or "csv", generated_users(number, seed))
