"""References to the environment and to files, in values."""

from pathlib import Path

import pytest

from support.fixtures.configs import GOOD, Load, ProblemsIn


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


def test_the_name_of_a_setting_is_not_a_reference(problems_in: ProblemsIn) -> None:
    problems = problems_in(f"{GOOD}'${{env:NAME}}': 1", {"NAME": "demo"})
    assert problems[0].startswith("3:1: unknown setting; ")


def test_a_referenced_value_is_validated_and_not_printed(problems_in: ProblemsIn) -> None:
    assert problems_in(f"{GOOD}demo: '${{env:DEMO}}'", {"DEMO": "canary"}) == [
        "3:7: demo: must be true or false"
    ]


def test_a_file_must_hold_text(problems_in: ProblemsIn, tmp_path: Path) -> None:
    (tmp_path / "owner").write_bytes("ü".encode("latin-1"))
    assert problems_in(f"{GOOD}logging: {{level: '${{file:owner}}'}}") == [
        "3:18: logging.level: the file owner is not UTF-8 text"
    ]


def test_a_file_name_with_nul_is_reported(problems_in: ProblemsIn) -> None:
    (problem,) = problems_in(f'{GOOD}logging: {{level: "${{file:a\\0b}}"}}')
    assert problem.startswith("3:18: logging.level: ")


def test_plain_tokens_are_not_reported_while_the_host_is_unknown(problems_in: ProblemsIn) -> None:
    text = (
        f"{GOOD}server: {{host: '${{env:HOST}}'}}\n"
        "auth: {keys: [{id: a, token: plain-token-of-a-partner}]}"
    )
    assert problems_in(text) == ["3:16: server.host: the environment variable HOST is not set"]
