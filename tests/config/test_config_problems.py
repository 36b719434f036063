"""Every problem of a configuration is reported with its position."""

import hashlib
import itertools
import sys

import pytest

from support.fixtures.configs import GOOD, ProblemsIn
from tornado_idv.interfaces.backend import BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.keys.token import issue

TOKEN = "plain-token-of-a-partner"
NO_PLAIN_TOKEN = (
    "a plain token is only allowed with demo: true or when listening on loopback; write "
    "sha256 instead, as printed by: printf %s TOKEN | sha256sum"
)
NO_DATE = "not a date and time; write it like 2027-01-01T00:00:00Z"
NO_DURATION = "not a duration; write a number and ms, s, m, h or d, like 30s"
NO_KEY = "not a token: 16 to 512 letters, digits and - . _ ~ + / are needed"
NO_HOST = "must be an IP address or the name of a host, without a port"
NO_PATTERN = "not a regular expression; look-around and back references are not supported"
NO_WHOLE = "must be a whole number, written in digits alone"
NO_NETWORK = "must be an IP address, a network like 10.0.0.0/8 or fd00::/8, or unix:"
NO_NETWORKS = ("proxy.example", "''", "10.0.0.0/33", "fe80::1%eth0", "10.0.0.0/255.0.0.0")
NO_BASE_PATH = "must be empty or like /identity, without a slash at the end"
NO_RATE = "not a rate; write a number, / and a period, like 100/second or 300/10 minutes"
NO_WORKERS = "must be a whole number from 1 to 256, or auto"
ANOTHER_TYPE = "must be a rate, like 100/second or 300/10 minutes"
NO_REFERENCE = "not a reference; write ${env:NAME}, ${file:path}, or $${ for a literal ${"
REMOVED = (
    "removed in 1.0: limits apply to each machine separately; remove this section, and limit the "
    "total of all machines in their load balancer, for example by limit_req in nginx or a "
    "stick-table in haproxy"
)
ONE_WORKER = (
    "server.workers: demo: true needs workers: 1, because the test double keeps its state in one "
    "process"
)
SECTIONS = (
    "profile_sites, server, admin, auth, limits, cache, shared_cache, identifiers, backends, "
    "logging, demo"
)


def key(**members: str) -> str:
    """A configuration with one key, its members beginning at line 4, column 6."""
    text = ", ".join(f"{name}: {value}" for name, value in members.items())
    return f"auth: {{keys: [\n    {{{text}}}]}}"


DIGEST = "a" * 64

ADDED_TO_A_GOOD_FILE: list[tuple[str, str | list[str]]] = [
    ("servr: {}", '3:1: servr: unknown setting; did you mean "server"?'),
    ("xyz: 1", f"3:1: xyz: unknown setting; known here are {SECTIONS}"),
    ("shared_limits: {kind: redis, url: redis://h}", f"3:1: shared_limits: {REMOVED}"),
    ("server: {workers: many}", f"3:19: server.workers: {NO_WORKERS}"),
    ("server: {workers: 257}", f"3:19: server.workers: {NO_WORKERS}"),
    ('server: {host: "127.0.0.1:80"}', f"3:16: server.host: {NO_HOST}"),
    ("server: {port: 65536}", "3:16: server.port: must be at most 65535"),
    ("server: {base_path: /../x}", f"3:21: server.base_path: {NO_BASE_PATH}"),
    (r'auth: {store: "a\0b"}', "3:15: auth.store: not a path; it holds a NUL character"),
    ("server: {max_body: 2MiB}", "3:20: server.max_body: must be from 1B to 1MiB"),
    ("server: {body_timeout: 0s}", "3:24: server.body_timeout: must be greater than 0"),
    ("server: {max_body: 0B}", "3:20: server.max_body: must be from 1B to 1MiB"),
    (
        "limits: {requests: 100, misses: '300', failed_auth: }",
        [
            f"3:20: limits.requests: {NO_RATE}",
            f"3:33: limits.misses: {NO_RATE}",
            f"3:53: limits.failed_auth: {NO_RATE}",
        ],
    ),
    ("limits: {requests: {count: 1}}", f"3:20: limits.requests: {ANOTHER_TYPE}"),
    (
        "limits: {misses: {rate: 300/fortnight, log_onli: true}}",
        [
            f"3:25: limits.misses.rate: {NO_RATE}",
            ('3:40: limits.misses.log_onli: unknown setting; did you mean "log_only"?'),
        ],
    ),
    ("limits: {misses: {log_only: true}}", "3:18: limits.misses.rate: is missing"),
    ("limits: {misses: [1/s]}", "3:18: limits.misses: must be a mapping, not a list"),
    (
        "server:\n  trusted_proxies:" + "".join(f"\n  - {each}" for each in NO_NETWORKS),
        [f"{5 + i}:5: server.trusted_proxies[{i}]: {NO_NETWORK}" for i in range(5)],
    ),
    (
        "server: {trusted_proxies: [10.0.0.1/8, 'fd00::1/8']}",
        [
            f"3:{column}: server.trusted_proxies[{i}]: not a network's first address; write it "
            "like 10.0.0.0/8"
            for i, column in enumerate((28, 40))
        ],
    ),
    (
        "server: {trusted_proxies: ['::ffff:10.0.0.1', '::ffff:0:0/96']}",
        [
            f"3:{column}: server.trusted_proxies[{i}]: IPv4 within IPv6 is written as IPv4, "
            "without ::ffff: in front"
            for i, column in enumerate((28, 47))
        ],
    ),
    (
        "server:\n  drain:\n    delay: now\n    timeout: [1s]",
        [
            f"5:12: server.drain.delay: {NO_DURATION}",
            "6:14: server.drain.timeout: must be a number, not a list",
        ],
    ),
    (
        'identifiers: {nickname_pattern: "[a-z"}',
        f"3:33: identifiers.nickname_pattern: {NO_PATTERN}",
    ),
    ("identifiers: {card_length: [1]}", "3:28: identifiers.card_length[1]: is missing"),
    (
        "identifiers: {card_length: [0, 65]}",
        [
            "3:29: identifiers.card_length[0]: must be at least 1",
            "3:32: identifiers.card_length[1]: must be at most 64",
        ],
    ),
    (
        "identifiers: {card_length: [8, 4]}",
        "3:28: identifiers.card_length: the minimum comes first, then the maximum",
    ),
    ("identifiers: {card_length: 16}", "3:28: identifiers.card_length: must be a list, not text"),
    (
        "logging: {level: loud, format: xml}",
        [
            "3:18: logging.level: must be debug, info, warning or error",
            "3:32: logging.format: must be auto, console or json",
        ],
    ),
    ("demo: true\nserver: {workers: 2}", f"4:19: {ONE_WORKER}"),
    ("auth:\n  keys:", "4:8: auth.keys: must be a list; it is empty"),
    (key(id="shop"), "4:5: auth.keys[0]: needs sha256; a demo or loopback allows token"),
    (
        key(id="a", token=TOKEN, sha256=DIGEST),
        "4:46: auth.keys[0]: has sha256 and token; leave one out",
    ),
    (
        key(id="my_shop", sha256=DIGEST),
        "4:10: auth.keys[0].id: must be 1 to 64 letters, digits, . and -",
    ),
    (key(id="a", sha256="abc"), "4:21: auth.keys[0].sha256: must be 64 hexadecimal digits"),
    (key(id="a", token="short"), f"4:20: auth.keys[0].token: {NO_KEY}"),
    (
        key(id="a", token="idv_a_A0ztkdghoAqvbHYwPeVxNCrBJfrStMfg_6e43df4_"),
        "4:20: auth.keys[0].token: the token's check digits are wrong; it was mistyped or cut",
    ),
    (
        "server: {host: idv.example}\ndemo: no\n" + key(id="a", token=TOKEN),
        f"6:20: auth.keys[0].token: {NO_PLAIN_TOKEN}",
    ),
    (
        "server: {host: idv.example}\ndemo: of\n" + key(id="a", token=TOKEN),
        "4:7: demo: must be true or false",
    ),
    (
        key(id="a", sha256=DIGEST, scopes="[identify]"),
        "4:96: auth.keys[0].scopes[0]: must be identify:url, identify:card or admin",
    ),
    (key(id="a", sha256=DIGEST, expires="2027"), f"4:96: auth.keys[0].expires: {NO_DATE}"),
    (
        key(id="a", sha256=DIGEST, expires="2027-01-01T00:00:00"),
        (
            "4:96: auth.keys[0].expires: the time zone is missing; add Z for UTC, as in "
            "2027-01-01T00:00:00Z"
        ),
    ),
    (
        key(
            id="a", sha256=DIGEST, not_before="2027-01-01T00:00Z", expires="2027-01-01T01:00+01:00"
        ),
        "4:127: auth.keys[0].expires: must be after not_before",
    ),
    (
        (
            f"auth:\n  keys:\n  - {{id: a, token: {TOKEN}}}\n"
            f"  - {{id: b, sha256: {hashlib.sha256(TOKEN.encode()).hexdigest().upper()}}}\n"
            f"  - {{id: a, sha256: {DIGEST}}}\n  - {{id: a, sha256: {'b' * 64}}}"
        ),
        [
            "6:21: auth.keys[1].sha256: another key has this token, see line 5",
            "7:10: auth.keys[2].id: another key has this id, see line 5",
            "8:10: auth.keys[3].id: another key has this id, see line 5",
        ],
    ),
    (
        "server: {host: 0.0.0.0}\n" + key(id="a", token='"${env:NO_TOKEN}"'),
        "5:20: auth.keys[0].token: the environment variable NO_TOKEN is not set",
    ),
    (
        "auth:\n  keys: [{id: a, sha256: '${env:ONE}${file:two}'}]",
        [
            "4:26: auth.keys[0].sha256: the environment variable ONE is not set",
            "4:26: auth.keys[0].sha256: the file two cannot be read: No such file or directory",
        ],
    ),
    ("logging: {level: '${LEVEL}'}", f"3:18: logging.level: {NO_REFERENCE}"),
    (
        key(id="a", sha256=DIGEST, owner="'${env:NO}'"),
        "4:94: auth.keys[0].owner: the environment variable NO is not set",
    ),
    (
        "x: ['${env:NOT_SET}']",
        [
            f"3:1: x: unknown setting; known here are {SECTIONS}",
            "3:5: x[0]: the environment variable NOT_SET is not set",
        ],
    ),
]

KEY_MEMBERS = "id, sha256, token, owner, scopes, not_before, expires, limits"
SITE = "profile_sites: [https://profiles.example]\n"
KINDS = "the kinds are remote, table"
SHADOW = "{name: %s, kind: table, path: x, shadow: {sample: 5%%, state: s}}"
OF_TABLES = ", ".join([*BackendOptions.model_fields, "path", "columns"])

WHOLE_FILES: list[tuple[str, str | list[str]]] = [
    ("", ["1:1: profile_sites: is missing", "1:1: backends: is missing"]),
    ("profile_sites", "1:1: must be a mapping, not text"),
    ("demo: &on true", "1:7: anchors and aliases are refused; write the value out"),
    (
        GOOD.replace("https://profiles.example", "profiles.example"),
        "1:17: profile_sites[0]: not a site address; write it like https://profiles.example",
    ),
    (
        f"{SITE}backends:\n  members: {{kind: table}}",
        "3:3: backends: must be a list, not a mapping",
    ),
    (f"{SITE}backends: [table]", "2:12: backends[0]: must be a mapping, not text"),
    (
        f"{SITE}backends: [{{name: a, kind: tabel, whatever: 1}}, {{name: b, kind: maple}}]",
        [
            f'2:28: backends[0].kind: unknown kind; did you mean "table"? {KINDS}',
            f"2:65: backends[1].kind: unknown kind; {KINDS}",
        ],
    ),
    (
        f"profile_site: []\n{GOOD.replace('[https://profiles.example]', '[]')}",
        [
            '1:1: profile_site: unknown setting; did you mean "profile_sites"?',
            "2:16: profile_sites: too few items: at least 1, not 0",
        ],
    ),
    (
        f"{GOOD}auth: {{keys: [{{id: a, token:{TOKEN}}}, {{id:b, sha256: {DIGEST}}}]}}",
        [
            '3:23: auth.keys[0]: a space is missing after the colon of "token"',
            '3:57: auth.keys[1]: a space is missing after the colon of "id"',
        ],
    ),
    (
        f"{GOOD}auth: {{keys: [{{id: a, {TOKEN}: x, sha256: {DIGEST}}}]}}",
        f"3:23: auth.keys[0]: unknown setting; known here are {KEY_MEMBERS}",
    ),
    (
        (
            f"{SITE}backends:\n"
            f"  - {{name: a, kind: remote, url: x, headers: {{{TOKEN}: x, ODD: ['${{env:NO}}']}}}}"
        ),
        [
            "3:73: backends[0].headers: must be a whole number",
            "3:81: backends[0].headers: must be a whole number, not a list",
            "3:82: backends[0].headers: the environment variable NO is not set",
        ],
    ),
    (f"{SITE}backends:\n  - name: a", f"3:5: backends[0].kind: is missing; {KINDS}"),
    (
        f"{SITE}backends: [{{name: a, kind: '${{env:KIND}}'}}]",
        "2:28: backends[0].kind: the environment variable KIND is not set",
    ),
    (
        f"{SITE}backends:\n  - kind: table\n    columns: {{nick: a}}\n    paht: a\n",
        [
            "3:5: backends[0].name: is missing",
            '4:15: backends[0].columns.nick: unknown setting; did you mean "nickname"?',
            '5:5: backends[0].paht: unknown setting; did you mean "path"?',
        ],
    ),
    (
        f"{SITE}backends:\n  - {{kind: table, name: a b, path: '', timeout: 0s, cache_ttl: null}}",
        [
            "3:25: backends[0].name: must match ^[A-Za-z0-9_.-]{1,64}$",
            "3:36: backends[0].path: a path is missing",
            "3:49: backends[0].timeout: must be greater than 0",
            f"3:64: backends[0].cache_ttl: {NO_DURATION}",
        ],
    ),
    (
        (
            f"{SITE}backends:\n"
            "  - {name: a, kind: remote, url: x, pool: many}\n"
            "  - {name: b, kind: remote, url: x, auth: {kind: tokn}}\n"
            "  - {name: c, kind: remote, url: x, auth: {kind: token}}\n"
            "  - {name: d, kind: remote, url: x, headers: {remote: x}}\n"
            "  - {name: e, kind: remote, url: x, tables: {a: {nicknam: x}, A: {nickname: [x]}}}\n"
            "  - {name: f, kind: remote, url: x, canary: {nicknam: x}}\n"
            "  - {name: g, kind: remote, url: x, canary: [{nicknam: x}]}\n"
        ),
        [
            "3:43: backends[0].pool: must be a whole number",
            "3:43: backends[0].pool: must be true or false",
            (
                '4:50: backends[1].auth.kind: unknown kind; did you mean "token"? '
                "the kinds are none, token"
            ),
            "5:43: backends[2].auth.token: is missing",
            "6:55: backends[3].headers.remote: must be a whole number",
            '7:50: backends[4].tables.a.nicknam: unknown setting; did you mean "nickname"?',
            "7:77: backends[4].tables: must be text, not a list",
            '8:46: backends[5].canary.nicknam: unknown setting; did you mean "nickname"?',
            '9:47: backends[6].canary[0].nicknam: unknown setting; did you mean "nickname"?',
        ],
    ),
    (
        (
            f"{SITE}backends:\n"
            "  - {name: a, kind: table, path: a}\n"
            "  - {name: b, kind: table, path: a}\n"
            "  - {name: a, kind: remote, url: a}\n"
        ),
        "5:12: backends[2].name: another backend has this name, see line 3",
    ),
    (
        f"{SITE}backends: [{SHADOW % 'a'}, {SHADOW % 'b'}]",
        [
            "2:11: backends: all backends are shadows; remove shadow from the one that answers",
            "2:137: backends[1].shadow.state: another shadow writes to this file, see line 2",
        ],
    ),
    (
        f"{SITE}backends: [{{name: a, kind: remote, url: a, shadow: {{hits: true}}}}]",
        "2:52: backends[0].shadow.sample: is missing",
    ),
    (
        (
            "server: {port: no}\n"
            "auth: {keys: [{id: a, token: abc}, {id: a, sha256: '${env:SHA}'}, later]}\n"
            "backends: [{name: a, kind: table}, {name: a, kind: tables}]\n"
        ),
        [
            "1:1: profile_sites: is missing",
            f"1:16: server.port: {NO_WHOLE}",
            f"2:30: auth.keys[0].token: {NO_KEY}",
            "2:41: auth.keys[1].id: another key has this id, see line 2",
            "2:52: auth.keys[1].sha256: the environment variable SHA is not set",
            "2:67: auth.keys[2]: must be a mapping, not text",
            "3:12: backends[0].path: is missing",
            "3:43: backends[1].name: another backend has this name, see line 3",
            f'3:52: backends[1].kind: unknown kind; did you mean "table"? {KINDS}',
        ],
    ),
]


@pytest.mark.parametrize(
    ("text", "problems"),
    [*((GOOD + added, problems) for added, problems in ADDED_TO_A_GOOD_FILE), *WHOLE_FILES],
)
def test_an_invalid_setting_is_reported_at_its_position(
    problems_in: ProblemsIn, text: str, problems: str | list[str]
) -> None:
    assert problems_in(text) == ([problems] if isinstance(problems, str) else problems)


@pytest.mark.parametrize(
    ("backend", "count", "reported"),
    [
        ("kind: remote, timeout: x", 1, "28: backends[0].kind: unknown kind; the kinds are table"),
        (
            "kind: table, path: x, table: x",
            1,
            f"44: backends[0].table: unknown setting; known here are {OF_TABLES}",
        ),
        ("kind: x", 0, "12: backends[0]: no kind of backend is installed; install a plugin"),
    ],
    ids=["another kind", "another option", "no kind at all"],
)
def test_a_backend_is_one_problem_if_one_kind_is_installed_or_none(
    problems_in: ProblemsIn, kinds: Kinds, backend: str, count: int, reported: str
) -> None:
    installed = Kinds({"table": kinds.backends["table"]} if count else {})
    text = f"{SITE}backends: [{{name: a, {backend}}}]"
    assert problems_in(text, kinds=installed) == [f"2:{reported}"]


def test_a_type_without_a_message_is_reported_as_not_valid(
    problems_in: ProblemsIn, kinds: Kinds
) -> None:
    class Odd(BackendOptions):
        Phase: complex

    class OddBackend(kinds.backends["table"]):
        options_type = Odd

    text = f"{SITE}backends: [{{name: a, kind: odd, Phase: canary}}]"
    assert problems_in(text, kinds=Kinds({"odd": OddBackend})) == [
        "2:40: backends[0].Phase: is not valid"
    ]


def test_no_problem_repeats_a_value(problems_in: ProblemsIn) -> None:
    """The canary stands wherever a scalar may: as text it fits nowhere."""
    canary = "canary 4000123412341234"
    text = f"""\
profile_sites: [{canary}]
server: {{host: {canary}, port: {canary}, base_path: {canary}, max_body: {canary}}}
auth: {{keys: [{{id: {canary}, sha256: {canary}, scopes: [{canary}], expires: {canary}}},
               {{id: b, token: {canary}}}, {canary}]}}
cache: {canary}
identifiers: {{nickname_pattern: '({canary}', nickname_case: {canary}, card_length: [{canary}]}}
backends: [{{name: {canary}, kind: table, path: x, timeout: {canary}}},
           {{name: b, kind: {canary}}},
           {{name: c, kind: remote, url: x, pool: {canary}, auth: {{kind: {canary}}}}}]
logging: {{level: {canary}}}
demo: {canary}
"""
    problems = problems_in(text)
    assert len(problems) > 20
    assert not [problem for problem in problems if "canary" in problem or "4000" in problem]


@pytest.mark.parametrize(
    "text",
    [
        "auth: {keys: [{id: a, token:CANARY}]}",
        "auth: {keys: [{id: a, tokn:CANARY}]}",
        "auth: {keys: [{CANARY: {a: '${env:NO}'}}]}",
        "CANARY: 1",
        "token:CANARY: 1",
        "'CANARY\nCANARY': [{a: b}]",
        "server: {drain: {delay:CANARY}}",
    ],
)
def test_no_problem_repeats_a_name_that_may_hold_secret(problems_in: ProblemsIn, text: str) -> None:
    canary = issue("canary")
    problems = "\n".join(problems_in(GOOD + text.replace("CANARY", canary), {}))
    assert problems
    assert "idv_" not in problems
    assert canary.split("_")[2] not in problems


def test_a_name_that_is_too_long_is_not_printed(problems_in: ProblemsIn) -> None:
    name = "a" * 40
    assert problems_in(f"{GOOD}{name}: 1")[0].startswith(f"3:1: {name}: unknown setting; ")
    assert problems_in(f"{GOOD}{name}a: 1")[0].startswith("3:1: unknown setting; ")


@pytest.mark.slow
def test_the_work_to_find_problems_is_linear_in_their_number(problems_in: ProblemsIn) -> None:
    def calls(count: int) -> int:
        keys = "\n".join(f"  - {{id: k{i}, scopes: [], x: 1}}" for i in range(count))
        made = itertools.count()
        sys.setprofile(lambda *_: next(made))
        try:
            problems = problems_in(f"{GOOD}auth:\n keys:\n{keys}")
        finally:
            sys.setprofile(None)
        assert len(problems) == 3 * count
        return next(made)

    calls(1)  # the schema is made once
    assert calls(500) < 6 * calls(100)
