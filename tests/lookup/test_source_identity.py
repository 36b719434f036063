"""The identity of a source: which options belong to it, and which of their secrets."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import pytest

from idv_ldap.options import BindOptions
from idv_postgres.options import PostgresOptions
from idv_redis.options import RedisOptions
from idv_upstream.options import UpstreamOptions
from support.fakes.clock_and_backends import Ticker
from tornado_idv import BackendOptions, Options, Password, Secret, SecretUrl
from tornado_idv.files import FileSecret
from tornado_idv.lookup.source_identity import identity_of, sealed
from tornado_idv.options import KeyStoreAddress
from tornado_idv.yaml_loader import FileText

DSN = "postgresql://idv:one@db1:5433/club?sslmode=require"
SAME: list[tuple[type[Options], dict[str, Any], dict[str, Any]]] = [
    (PostgresOptions, {"dsn": DSN}, {"dsn": DSN.replace("one", "two")}),
    (PostgresOptions, {"dsn": DSN + "&password=a"}, {"dsn": DSN + "&password=b"}),
    (PostgresOptions, {"dsn": DSN + "&sslpassword=a"}, {"dsn": DSN + "&sslpassword=b"}),
    (RedisOptions, {"url": "redis://r/0"}, {"url": "redis://:new@r/0"}),
    (RedisOptions, {"url": "redis://r/0?PASSWORD=a"}, {"url": "redis://r/0?PASSWORD=b"}),
    (BindOptions, {"dn": "cn=a", "password": "x"}, {"dn": "cn=a", "password": "y"}),
]
SERVER = {"base_url": "https://crm.example"}
ADDRESS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(KeyStoreAddress)


def auth(**options: Any) -> dict[str, Any]:
    return {**SERVER, "auth": options}


api_key = partial(auth, kind="api_key", header="X-Key")
basic = partial(auth, kind="basic", username="x")


def login(**options: Any) -> dict[str, Any]:
    body = {"url": "https://crm.example/login", "token": "token", "json": {"name": "idv"}}
    return {**SERVER, "auth": {"login": {**body, **options}}}


OTHER: list[tuple[type[Options], dict[str, Any], dict[str, Any]]] = [
    *(
        (PostgresOptions, {"dsn": DSN}, {"dsn": DSN.replace(old, new)})
        for old, new in [("club", "x"), ("5433", "5434"), ("idv", "x"), ("require", "disable")]
    ),
    (PostgresOptions, {"dsn": DSN}, {"dsn": DSN, "notify": {"dsn": DSN}}),
    (RedisOptions, {"url": "redis://r/0"}, {"url": "redis://r/1"}),
    (BindOptions, {"dn": "cn=a", "password": "x"}, {"dn": "cn=b", "password": "x"}),
    (UpstreamOptions, auth(kind="bearer", token="a"), auth(kind="bearer", token="b")),
    (UpstreamOptions, api_key(value="a"), api_key(value="b")),
    (UpstreamOptions, basic(password="a"), basic(password="b")),
    (UpstreamOptions, login(headers={"X-Org": "a"}), login(headers={"X-Org": "b"})),
    (UpstreamOptions, login(json={"org": "a"}), login(json={"org": "b"})),
]


def pair(kind: type[Options], one: dict[str, Any], two: dict[str, Any]) -> list[Any]:
    common = {"name": "users", "kind": "x"} if issubclass(kind, BackendOptions) else {}
    return [kind(**common, **options) for options in (one, two)]


@pytest.mark.parametrize("given", SAME)
def test_rotated_password_leaves_the_source_the_same(given: Any) -> None:
    one, two = pair(*given)
    assert one != two
    assert identity_of(one) == identity_of(two)


@pytest.mark.parametrize("given", OTHER)
def test_every_other_secret_belongs_to_the_source(given: Any) -> None:
    one, two = pair(*given)
    assert identity_of(one) != identity_of(two)


class Theirs(Options):
    """The options of a plugin."""

    key: pydantic.SecretStr = pydantic.SecretStr("")
    data: pydantic.SecretBytes = pydantic.SecretBytes(b"")
    number: pydantic.Secret[int] = pydantic.Secret[int](0)
    names: frozenset[str] | set[str] = frozenset()
    password: Password | None = None
    url: SecretUrl | None = None
    token: Secret | None = None


@pytest.mark.parametrize(
    "options", [{"key": "a"}, {"data": "a"}, {"number": 1}, {"token": "a"}, {"url": "x"}]
)
def test_secrets_of_a_plugin_count_unless_they_are_marked(options: dict[str, Any]) -> None:
    other = {name: value * 2 for name, value in options.items()}
    assert len({identity_of(Theirs(**each)) for each in ({}, options, other)}) == 3
    assert "**" in Theirs(**options).model_dump_json(exclude_defaults=True)


def test_set_has_one_identity_in_every_order() -> None:
    one, two = Theirs(names=frozenset("76543210")), Theirs(names=set("01234567"))
    assert identity_of(one) == identity_of(two) != identity_of(Theirs(names=frozenset("1")))


def test_stored_form_is_the_same_on_every_machine_and_in_every_process() -> None:
    identity = identity_of(Theirs(token="guess"))
    assert sealed(identity) == ("848421c5a99e4628c5ad9cebfcf16334fff8506e2fdbf4e007f903d17d1df748")


def test_file_is_followed_for_the_passwords_in_a_url_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dsn"
    text = FileText(DSN)
    text.path = path
    options = PostgresOptions(name="users", kind="postgres", dsn=text)
    secret, ticker = options.dsn, Ticker()
    assert isinstance(secret, FileSecret)
    assert isinstance(ADDRESS.validate_python(text), FileSecret)
    secret._timer, secret._checked_at = ticker, ticker()  # noqa: SLF001 - chance and time of the test

    def written(dsn: str) -> str:
        path.write_text(dsn)
        for _ in range(2):  # a change is logged once
            ticker.now += 1
            text = secret.get_secret_value()
        return text

    with caplog.at_level(logging.WARNING):
        assert written(DSN.replace("one", "two")) == DSN.replace("one", "two")
        assert not caplog.messages
        assert written(DSN.replace("club", "members")) == DSN.replace("one", "two")
        assert caplog.messages == [
            f"{path}: the URL has changed, not only its password; reload to use it"
        ]
        assert written(DSN.replace("one", "three")) == DSN.replace("one", "three")
