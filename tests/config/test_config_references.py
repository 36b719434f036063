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
