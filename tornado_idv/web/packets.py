"""The packet cache: requests whose bytes were understood before skip the handlers.

It remembers what bytes *mean*, which key and which query, and never an answer: that comes
from the `AnswerCache`, for as long as it is fresh there and the key is good. In any other
case nothing is said here, and the request takes the long way through Tornado. What the long
way does beside answering is done here as well: observers are told, a line is logged, the
answer gets a request id.

A head is kept as a digest, since a key stands in it. A body is kept when it is asked a second
time, at the earliest: most of those who guess never ask twice, and push nobody out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from tornado.httputil import HTTPHeaders, RequestStartLine

from tornado_idv.keys.api_key import ApiKey
from tornado_idv.keys.ring import KeyRing
from tornado_idv.lookup.directory import Directory
from tornado_idv.model import Query
from tornado_idv.web.access import AccessLog
from tornado_idv.web.answers import answer_bytes, new_request_id
from tornado_idv.web.refusals import Refusal

_HEAD_END = b"\r\n\r\n"
_LONGEST = 1024
_MOST_HEADS = 1_000
_MOST_BODIES = 50_000
_OTHER_ANSWER = ("Connection", "Content-Encoding", "Expect", "Transfer-Encoding", "X-Request-ID")
"""Headers with which a request may be answered in another way than without them."""


class Meaning(NamedTuple):
    """What a request was understood as: its route, its key, its query.

    ``remembered`` says that memory knew the answer, so that somebody had asked before.
    """

    route: str
    key: ApiKey
    query: Query
    remembered: bool


@dataclass(frozen=True, slots=True, repr=False)
class KnownHead:
    """A head that was understood, and the queries of the bodies that followed it or its like.

    There is no repr, as nicknames and card numbers stand in it.
    """

    route: str
    key: ApiKey
    length: int
    forwarded: str
    """Its ``X-Forwarded-For``: callers may share a head, and differ in who is believed."""
    queries: OrderedDict[bytes, Query]


class PacketCache:
    """Answers by a request's bytes what memory can answer."""

    def __init__(self, directory: Directory, keys: KeyRing, access_log: AccessLog | None) -> None:
        self._directory = directory
        self._keys = keys
        self._access_log = access_log
        self._heads: OrderedDict[bytes, KnownHead] = OrderedDict()
        self._queries: dict[str, OrderedDict[bytes, Query]] = {}

    def head(self, packet: bytes) -> KnownHead | None:
        """What is known of the head of exactly one whole request, if that is what this is."""
        end = _end_of_head(packet)
        head = self._heads.get(sha256(packet[:end]).digest())
        return head if head is not None and len(packet) - end == head.length else None

    def answer(self, query: Query, head: KnownHead, remote: str) -> bytes | None:
        """The whole answer to the caller at ``remote``; ``None`` for the long way."""
        if not self._keys.holds(head.key):
            return None
        began = time.monotonic()
        answer = self._directory.get_cached(query)
        if answer is None:
            return None
        request_id = new_request_id()
        status = 200 if answer.found else Refusal.NOT_FOUND.status
        if self._access_log is not None:
            self._access_log.answered(
                method="POST",
                route=head.route,
                status=status,
                seconds=time.monotonic() - began,
                remote=remote,
                key_id=head.key.id,
                request_id=request_id,
            )
        return answer_bytes(status, request_id, answer.body, len(answer.body))

    def learn(
        self,
        packet: bytes,
        start_line: RequestStartLine,
        headers: HTTPHeaders,
        meaning: Meaning,
    ) -> KnownHead | None:
        """Remembers what a request meant that took the long way; gives what its head is known as.

        That is `None` if such a head may not be remembered.
        """
        end = _end_of_head(packet)
        length = len(packet) - end
        if not 0 < end <= _LONGEST or not 0 < length <= _LONGEST:
            return None
        if headers.get("Content-Length") != str(length) or not _is_plain(start_line, headers):
            return None  # less or more than this request came by itself, or it is of no usual kind
        queries = self._queries.setdefault(meaning.route, OrderedDict())
        if meaning.remembered:
            _put(queries, packet[end:], meaning.query, _MOST_BODIES)
        forwarded = headers.get("X-Forwarded-For", "")
        head = KnownHead(meaning.route, meaning.key, length, forwarded, queries)
        _put(self._heads, sha256(packet[:end]).digest(), head, _MOST_HEADS)
        return head

    def learn_body(self, packet: bytes, head: KnownHead, query: Query) -> None:
        """Remembers what a body meant that followed a known head."""
        _put(head.queries, packet[-head.length :], query, _MOST_BODIES)


def _end_of_head(packet: bytes) -> int:
    """Where the body begins; 0 if the head is not whole."""
    end = packet.find(_HEAD_END)
    return end + len(_HEAD_END) if end >= 0 else 0


def _is_plain(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Whether nothing in the head could make the answer another one."""
    return (
        start_line.method == "POST"
        and start_line.version == "HTTP/1.1"
        and not any(name in headers for name in _OTHER_ANSWER)
        and len(list(headers.get_all())) == len(headers)
    )


def _put(entries: OrderedDict[bytes, Any], key: bytes, value: object, most: int) -> None:
    """Adds an entry; the oldest one makes room, which a plain dictionary would search for."""
    if len(entries) >= most and key not in entries:
        entries.popitem(last=False)
    entries[key] = value
