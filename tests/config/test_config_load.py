"""A configuration file becomes settings, as it was written, or problems at places in it."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from support.fixtures.configs import GOOD, Load, ProblemsIn
from tornado_idv.config.load import ConfigFile
from tornado_idv.errors import ConfigError, InvalidFormat, MissingConfigError, Problem, StartError
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.model import ByCard, ByNickname
from tornado_idv.units import Rate

TOKEN = "plain-token-of-a-partner"

EVERY_TYPE = f"""\
profile_sites: [https://profiles.example, "http://old.example:8080/people"]
server:
  port: 0
  max_body: 64KiB
  idle_timeout: 1m
  fast_path: no
  trusted_proxies: [10.0.0.1, 10.1.0.0/16, "::1", "FD00::/8"]
auth:
  keys:
    - id: shop
      sha256: {"AB" * 32}
      scopes: [identify:card, admin]
      not_before: 2026-01-01T00:00:00Z
      expires: 2027-01-01T02:00:00+02:00
      limits: {{requests: 5/s, misses: {{rate: 1/2 hours, log_only: yes}}}}
    - {{id: demo, token: {TOKEN}}}
limits: {{requests: 100/second, misses: 300/10 minutes}}
identifiers: {{nickname_pattern: "[a-z]+", nickname_case: fold, card_length: [4, 4]}}
backends:
  - {{name: members, kind: table, path: data/members.db, columns: {{nickname: nick}}}}
  - {{name: crm, kind: remote, url: "https://crm.example", auth: {{kind: token, token: xyz}}}}
demo: on
"""


def test_text_becomes_a_value_of_the_type_of_each_setting(load_text: Load, tmp_path: Path) -> None:
    settings = load_text(EVERY_TYPE)
    dumped = settings.model_dump(exclude_unset=True)
    assert dumped["server"] == {
        "port": 0,
        "max_body": 65536,
        "idle_timeout": 60,
        "fast_path": False,
        "trusted_proxies": ("10.0.0.1", "10.1.0.0/16", "::1", "FD00::/8"),
    }
    shop, demo = dumped["auth"]["keys"]
    assert demo == {"id": "demo", "token": SecretStr(TOKEN)}
    assert shop == {
        "id": "shop",
        "sha256": "AB" * 32,
        "scopes": ("identify:card", "admin"),
        "not_before": datetime(2026, 1, 1, tzinfo=UTC),
        "expires": datetime(2027, 1, 1, tzinfo=UTC),
        "limits": {
            "requests": {"count": 5, "seconds": 1, "log_only": False},
            "misses": {"rate": {"count": 1, "seconds": 7200, "log_only": False}, "log_only": True},
        },
    }
    assert dumped["limits"] == {
        "requests": {"count": 100, "seconds": 1, "log_only": False},
        "misses": {"rate": {"count": 300, "seconds": 600, "log_only": False}},
    }
    assert dumped["identifiers"]["card_length"] == (4, 4)
    assert dumped["demo"]
    members, crm = (each.model_dump(exclude_unset=True) for each in settings.backends)
    assert members == {
        "name": "members",
        "kind": "table",
        "path": tmp_path / "data/members.db",
        "columns": {"nickname": "nick"},
    }
    assert (crm["name"], crm["kind"], crm["url"]) == ("crm", "remote", "https://crm.example")
    assert all(each.folds_nicknames for each in settings.backends)


def test_keys_have_the_digest_of_their_token_and_the_defaults(load_text: Load) -> None:
    shop, demo = load_text(EVERY_TYPE).auth.keys
    assert shop.api_key.digest == bytes.fromhex("ab" * 32)
    assert demo.api_key.digest == sha256(TOKEN.encode()).digest()
    assert demo.scopes == ("identify:url", "identify:card")
    assert (demo.limits.requests, demo.limits.misses) == (None, None)
    text = f"{GOOD}auth: {{keys: [{{id: a, sha256: {'a' * 64}, limits: {{misses: 1/s}}}}]}}"
    (refused,) = load_text(text).auth.keys
    logged = Rate(1, 7200, log_only=True)
    assert [each.api_key.misses for each in (shop, demo, refused)] == [logged, None, Rate(1, 1)]


def test_no_repr_shows_a_token_or_a_digest(load_text: Load) -> None:
    shown = repr(load_text(EVERY_TYPE))
    assert not [each for each in (TOKEN, "ABAB", "xyz") if each in shown]


def test_shadow_may_come_before_the_backend_that_answers(load_text: Load) -> None:
    shadow = "{name: new, kind: table, path: new.db, shadow: {sample: 5%}}"
    settings = load_text(GOOD.replace("backends: [", f"backends: [{shadow}, "))
    assert [each.name for each in (*settings.served, *settings.shadows)] == ["members", "new"]


def test_identifiers_follow_the_settings(load_text: Load) -> None:
    forms = load_text(EVERY_TYPE).make_identifiers()
    assert forms.parse_card("4000") == ByCard("4000")
    assert forms.parse_nickname("AL") == ByNickname("al")
    assert forms.parse_input("http://old.example:8080/people/m/al") == ByNickname("al")
    with pytest.raises(InvalidFormat):
        forms.parse_card("400")
    with pytest.raises(InvalidFormat):
        forms.parse_nickname("al9")


def test_paths_are_relative_to_the_file_which_problems_name_as_given(
    tmp_path: Path, kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "conf/config.yaml"
    config.parent.mkdir()
    config.write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    settings = ConfigFile.read(Path("conf/config.yaml")).load(kinds, {})
    assert settings.backends[0].model_dump()["path"] == tmp_path / "conf/members.db"
    config.write_text("a: [")
    with pytest.raises(ConfigError, match=r"^conf/config\.yaml:[12]:\d: not valid YAML: "):
        ConfigFile.read(Path("conf/config.yaml")).load(kinds, {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.yaml", "No such file or directory"),
        ("large/config.yaml", "Not a directory"),
        (".", "Is a directory"),
        ("fifo", "not a regular file"),
        ("zero", "not a regular file"),
        ("large", "larger than 1 MiB"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_only_small_regular_files_are_loaded(
    tmp_path: Path, kinds: Kinds, name: str, reason: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b"#" * (1024**2 + 1))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StartError, match=f": cannot be read: {reason}$") as raised:
        ConfigFile.read(tmp_path / name).load(kinds, {})
    assert isinstance(raised.value, MissingConfigError) is (name == "absent.yaml")


@pytest.mark.parametrize("server", ["workers: 256", "max_body: 1B", "max_body: 1MiB"])
def test_limit_itself_is_valid_also_in_a_file_of_1_mib(load_text: Load, server: str) -> None:
    load_text(f"{GOOD}server: {{{server}}}\n".ljust(1024**2, "#"))


@pytest.mark.parametrize("host", ["idv.example.", "a_b", "-", "a" * 63, "a." * 126])
def test_a_valid_host_can_be_resolved(load_text: Load, host: str) -> None:
    assert load_text(f"{GOOD}server: {{host: '{host}'}}").server.host == host
    host.encode("idna")


@pytest.mark.parametrize(
    "host", [".", ".a", "a..b", "a" * 64, f"b.{'a' * 64}.c", "a." * 127, "a b", "\u00fc"]
)
def test_a_host_that_cannot_be_resolved_is_rejected(load_text: Load, host: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.host: must be an IP address or the name"):
        load_text(f"{GOOD}server: {{host: '{host}'}}")


@pytest.mark.parametrize(
    "path", ["healthz", "/", "/a/", "/a?b", "/../a", "/./a", "/api/v1/y", "/x/api/v1/y", "/a b"]
)
def test_invalid_health_path_is_rejected(load_text: Load, path: str) -> None:
    with pytest.raises(ConfigError, match="must be like /healthz, and not a path of the API"):
        load_text(f"{GOOD}server: {{health_path: '{path}'}}")


def test_old_name_of_the_fast_path_still_works(load_text: Load) -> None:
    assert not load_text(GOOD + "server: {packet_cache: False}\n").server.fast_path


def owner(written: str) -> str:
    return f"{GOOD}auth: {{keys: [{{id: a, sha256: {'a' * 64}, owner: {written}}}]}}"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("the ${env:TEAM} ${env:UNIT}", "the web 0012"),
        ("${env:EMPTY}", ""),
        ("${env:NESTED}", "${env:TEAM}"),
        ("$${env:TEAM}", "${env:TEAM}"),
        ("$$${env:TEAM}", "$${env:TEAM}"),
        ("$TEAM {env:TEAM} $", "$TEAM {env:TEAM} $"),
    ],
)
def test_reference_to_the_environment_is_replaced(load_text: Load, written: str, read: str) -> None:
    environ = {"TEAM": "web", "UNIT": "0012", "EMPTY": "", "NESTED": "${env:TEAM}"}
    assert load_text(owner(f"'{written}'"), environ).auth.keys[0].owner == read


@pytest.mark.parametrize(
    ("content", "read"),
    [("web\r\n", "web"), ("web\n\n", "web\n"), (" \tweb ", " \tweb "), ("", "")],
)
def test_a_reference_to_a_file_is_replaced_by_its_text(
    load_text: Load, tmp_path: Path, content: str, read: str
) -> None:
    path = tmp_path / "secrets/owner"
    path.parent.mkdir()
    path.write_bytes(content.encode())
    for name in ("secrets/owner", path):
        assert load_text(owner(f"'${{file:{name}}}'")).auth.keys[0].owner == read


def test_any_scalar_can_be_a_reference(load_text: Load) -> None:
    text = f"{GOOD}server: {{port: '${{env:PORT}}', idle_timeout: '${{env:SECONDS}}s'}}"
    server = load_text(text, {"PORT": "81", "SECONDS": "7"}).server
    assert (server.port, server.idle_timeout) == (81, 7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("'${env:NAME}': 1", "3:1: unknown setting; "),
        ("demo: '${env:WORD}'", "3:7: demo: must be true or false"),
        ("logging: {level: '${file:owner}'}", "3:18: logging.level: the file owner is not UTF-8"),
        ('logging: {level: "${file:a\\0b}"}', "3:18: logging.level: "),
        ("auth: {keys: [{id: a, token: '${env:ODD}'}]}", "3:30: auth.keys[0].token: must be text"),
        (
            f"server: {{host: '${{env:HOST}}'}}\nauth: {{keys: [{{id: a, token: {'a' * 16}}}]}}",
            "3:16: server.host: the environment variable HOST is not set",
        ),
    ],
    ids=["a name", "a switch", "no text", "NUL", "undecodable", "plain token of a host unknown"],
)
def test_reference_that_gives_no_valid_value_is_one_problem_without_the_value(
    problems_in: ProblemsIn, tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "owner").write_bytes("canary ü".encode("latin-1"))
    environ = {"NAME": "demo", "WORD": "canary", "ODD": "canary" + "\udcff" * 16}
    (found,) = problems_in(GOOD + text, environ)
    assert found.startswith(problem)
    assert "canary" not in found


NAMES = [
    *("profile_sites", "server", "host", "port", "base_path", "max_body", "drain", "delay"),
    *("auth", "keys", "id", "sha256", "token", "scopes", "expires", "not_before", "cache", "ttl"),
    *("identifiers", "nickname_pattern", "card_length", "backends", "name", "kind", "path"),
    *("columns", "url", "pool", "headers", "table", "remote", "logging", "level", "demo", "other"),
]
SCALARS = st.sampled_from(
    [
        *("", "a", "0", "-1", "1e5", "5m", "true", "::1", "table", "remote", "token", "none"),
        *("${env:A}", "${", "https://profiles.example", "2027-01-01T00:00:00Z"),
        *("a" * 64, "9" * 5000, "\u00e4\0("),
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
ENTRIES = st.lists(st.dictionaries(st.sampled_from(NAMES), TREES, max_size=6) | TREES, max_size=3)
FILES = TREES | st.fixed_dictionaries(
    {"backends": ENTRIES | TREES, "auth": st.fixed_dictionaries({"keys": ENTRIES | TREES})},
    optional=dict.fromkeys(("server", "cache", "identifiers", "logging", "demo"), TREES),
)


@pytest.mark.slow
@given(tree=FILES)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_tree_is_settings_or_problems_in_the_order_of_the_file(
    tmp_path: Path, kinds: Kinds, tree: object
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    lines = len(path.read_text().splitlines())
    problems = problems_of(path, kinds)
    places = [(problem.line, problem.column) for problem in problems]
    assert places == sorted(places)
    assert all(1 <= line <= lines and column >= 1 for line, column in places)
    assert all(problem.message for problem in problems)


def problems_of(path: Path, kinds: Kinds) -> Sequence[Problem]:
    try:
        ConfigFile.read(path).load(kinds, {})
    except ConfigError as error:
        return error.problems
    return ()
