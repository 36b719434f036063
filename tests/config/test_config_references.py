"""References to the environment and to files, in values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_idv.config.settings import Settings

Load = Callable[..., Settings]
Told = Callable[..., list[str]]

GOOD = """\
profile_sites: [https://profiles.example]
backends: [{name: members, kind: table, path: members.db}]
"""


def owner(written: str) -> str:
    return f"{GOOD}auth: {{keys: [{{id: a, sha256: {'a' * 64}, owner: {written}}}]}}"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("${env:TEAM}", "web"),
        ("the ${env:TEAM} ${env:UNIT}", "the web 0012"),
        ("${env:UNIT}", "0012"),
        ("${env:EMPTY}", ""),
        ("${env:NESTED}", "${env:TEAM}"),
        ("$${env:TEAM}", "${env:TEAM}"),
        ("$$${env:TEAM}", "$${env:TEAM}"),
        ("$${", "${"),
        ("$TEAM {env:TEAM} $", "$TEAM {env:TEAM} $"),
    ],
)
def test_a_reference_to_the_environment_is_replaced(
    load_text: Load, written: str, read: str
) -> None:
    environ = {"TEAM": "web", "UNIT": "0012", "EMPTY": "", "NESTED": "${env:TEAM}"}
    assert load_text(owner(f"'{written}'"), environ).auth.keys[0].owner == read


@pytest.mark.parametrize(
    ("content", "read"),
    [("web", "web"), ("web\n", "web"), ("web\r\n", "web"), ("web\n\n", "web\n"), ("", "")],
)
def test_a_reference_to_a_file_is_replaced_by_its_text(
    load_text: Load, tmp_path: Path, content: str, read: str
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/owner").write_bytes(content.encode())
    assert load_text(owner("'${file:secrets/owner}'")).auth.keys[0].owner == read


def test_an_absolute_path_is_taken_as_it_is(
    load_text: Load, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "owner"
    path.write_text("web")
    assert load_text(owner(f"'${{file:{path}}}'")).auth.keys[0].owner == "web"


def test_a_reference_may_stand_for_any_scalar(load_text: Load) -> None:
    text = f"{GOOD}server: {{port: '${{env:PORT}}', idle_timeout: '${{env:SECONDS}}s'}}"
    server = load_text(text, {"PORT": "81", "SECONDS": "7"}).server
    assert (server.port, server.idle_timeout) == (81, 7)


def test_the_name_of_a_setting_is_no_reference(told: Told) -> None:
    problems = told(f"{GOOD}'${{env:NAME}}': 1", {"NAME": "demo"})
    assert problems[0].startswith("3:1: unknown setting; ")


def test_what_a_reference_gives_is_checked_and_not_shown(told: Told) -> None:
    assert told(f"{GOOD}demo: '${{env:DEMO}}'", {"DEMO": "canary"}) == [
        "3:7: demo: must be true or false"
    ]


@pytest.mark.parametrize("content", [b"\xff", "ü".encode("latin-1")])
def test_a_file_must_hold_text(told: Told, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owner").write_bytes(content)
    assert told(f"{GOOD}logging: {{level: '${{file:owner}}'}}") == [
        "3:18: logging.level: the file owner holds no UTF-8 text"
    ]


def test_nothing_is_said_of_keys_while_the_host_is_not_known(told: Told) -> None:
    text = (
        f"{GOOD}server: {{host: '${{env:HOST}}'}}\n"
        "auth: {keys: [{id: a, token: plain-token-of-a-partner}]}"
    )
    assert told(text) == ["3:16: server.host: the environment variable HOST is not set"]
