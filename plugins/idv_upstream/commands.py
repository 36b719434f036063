"""``tornado-idv upstream``: what an operator tries before a mapping is trusted."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Any

import click

from idv_upstream.backend import UpstreamBackend
from idv_upstream.client import Reply
from idv_upstream.masking import Masker
from idv_upstream.options import UpstreamOptions
from idv_upstream.saved import saved_reply
from idv_upstream.trial import Trial, tried
from tornado_idv import CommandTools, Exit, InvalidFormat, LoadedConfig, Query, User, printable

_MOST_SHOWN = 4096


def commands(tools: CommandTools) -> list[click.Command]:
    """The group of commands that this plugin adds."""

    @click.group()
    def upstream() -> None:
        """Try how a directory is asked and read."""

    @upstream.command("try")
    @click.argument("name")
    @click.argument("who", metavar="@NICK|URL|DIGITS")
    @tools.config_option
    @click.option(
        "--answer",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Read this saved answer (a body, or what curl -i prints) instead of asking.",
    )
    @tools.json_option
    def try_(name: str, who: str, config_path: Path, answer: Path | None, as_json: bool) -> None:  # noqa: FBT001 click's way
        """Ask the upstream NAME for one user, and show every step.

        The request as it is sent (secrets masked), the answer, what each expression gave,
        the user or why there is none, and for how long that would be remembered. What the
        directory answers is shown as it is.
        """
        with tools.exit_on_error(Exit.COULD_NOT_TELL, as_json=as_json), _warnings_on_stderr():
            configured = tools.read(config_path)
            options, query = _options(configured, name), _query(configured, who)
            saved = None if answer is None else saved_reply(answer)
            trial = asyncio.run(_tried(options, query, configured, saved))
        seconds = _remembered(trial, options, configured)
        mask = Masker(configured.reference_values | trial.secrets)
        record = _record(trial, seconds, mask)
        click.echo(dumps(record) if as_json else "\n".join(map(printable, _lines(record))))
        sys.exit(_exit(trial))

    return [upstream]


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"warning: {record.getMessage()}", err=True)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings that are logged within, and nothing else of the log."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Stderr(logging.WARNING)]
    try:
        yield
    finally:
        root.handlers = before


async def _tried(
    options: UpstreamOptions, query: Query, configured: LoadedConfig, saved: Reply | None
) -> Trial:
    backend = UpstreamBackend(options)
    if type(query) not in backend.serves:
        raise click.UsageError(f"{options.name} is not asked for this kind of query")
    await backend.open()
    try:
        return await tried(backend, query, configured.parse, saved)
    finally:
        await backend.close()


def _options(configured: LoadedConfig, name: str) -> UpstreamOptions:
    upstreams = {
        each.name: each for each in configured.backends if isinstance(each, UpstreamOptions)
    }
    if name not in upstreams:
        there = ", ".join(upstreams) or "none"
        raise click.UsageError(f"no backend {name} of kind upstream; there are: {there}")
    return upstreams[name]


def _query(configured: LoadedConfig, who: str) -> Query:
    try:
        return configured.parse(who)
    except InvalidFormat as error:
        raise click.UsageError(f"{error}; write @nick, a profile URL, or digits") from None


def _remembered(trial: Trial, options: UpstreamOptions, configured: LoadedConfig) -> float:
    """Seconds for which the outcome would be answered from the cache."""
    if trial.failure is not None or not trial.storable:
        return 0.0
    own, usual = options.cache_ttl, configured.ttl
    if trial.user is None:
        own, usual = options.negative_ttl, configured.negative_ttl
    ttl = usual if own is None else own
    return ttl if trial.ttl is None else min(ttl, trial.ttl)


def _exit(trial: Trial) -> Exit:
    if trial.failure is not None:
        return Exit.COULD_NOT_TELL
    return Exit.NO if trial.user is None else Exit.DONE


def _record(trial: Trial, seconds: float, mask: Masker) -> dict[str, Any]:
    reply = trial.reply
    return {
        "request": {
            "method": mask(trial.method),
            "url": mask(trial.url),
            "headers": mask(trial.headers),
            "body": mask(_text(trial.body)),
        },
        "answer": reply
        and {
            "status": reply.status,
            "headers": mask(dict(reply.headers)),
            "body": mask(_text(reply.body)),
        },
        "expressions": [
            {
                "for": step.name,
                "expression": mask(step.expression),
                "gave": mask(step.gave),
                "failed": mask(step.failed or None),
            }
            for step in trial.steps
        ],
        "outcome": _outcome(trial),
        "reason": None if trial.failure is None else mask(trial.failure.reason),
        "user": _user(trial.user, mask) if trial.failure is None else None,
        "remembered_s": seconds,
        "shortened": not trial.storable or trial.ttl == seconds,
    }


def _outcome(trial: Trial) -> str:
    if trial.failure is not None:
        return "could not tell"
    return "not known" if trial.user is None else "found"


def _user(user: User | None, mask: Masker) -> dict[str, str | None] | None:
    if user is None:
        return None
    return {
        "plan": mask(user.plan),
        "card_number": mask(user.card_number),
        "nickname": mask(f"@{user.nickname}"),
        "profile_url": mask(user.profile_url),
    }


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")


def _lines(record: dict[str, Any]) -> Iterator[str]:
    request, answer = record["request"], record["answer"]
    yield f"request      {request['method']} {request['url']}"
    yield from _headers(request["headers"])
    yield from _body(request["body"])
    if answer is not None:
        yield f"answer       {answer['status']}"
        yield from _headers(answer["headers"])
        yield from _body(answer["body"])
    for step in record["expressions"]:
        gave = step["failed"] or dumps(step["gave"], ensure_ascii=False)
        yield f"{step['for']:12} {step['expression']}  ->  {_cut(gave)}"
    yield f"outcome      {record['outcome']}" + (
        f": {reason}" if (reason := record["reason"]) else ""
    )
    for name, value in (record["user"] or {}).items():
        if value is not None:
            yield f"             {name}: {value}"
    if record["reason"] is None:
        yield f"remembered   {_for(record['remembered_s'], shortened=record['shortened'])}"


def _for(seconds: float, *, shortened: bool) -> str:
    time = f"for at most {seconds:g} s" if seconds else "not at all"
    return f"{time}, as its Cache-Control asks (see cache_control)" if shortened else time


def _headers(headers: dict[str, str]) -> Iterator[str]:
    return (f"             {name}: {value}" for name, value in headers.items())


def _body(body: str | None) -> Iterator[str]:
    return (f"             {line}" for line in _cut(body or "").splitlines())


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ... ({len(text)} in all)"
