"""Whatever a file holds, it gives settings or problems at places in it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tornado_idv.config.load import ConfigFile
from tornado_idv.errors import ConfigError, Problem
from tornado_idv.interfaces.hookspecs import Kinds

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
