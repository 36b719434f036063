"""``tornado-idv init``: a start that works as it is."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.processes.process import Invoke, command
from support.processes.service import Client, serving
from tornado_idv.keys.token import check_token

ROOT = Path(__file__).parents[3]
FILES = ["config.yaml", "keys.db", "users.yaml"]


def test_init_writes_files_and_prints_the_key(invoke: Invoke, tmp_path: Path) -> None:
    """Folders on the way are made; the key is in no file, only its digest."""
    folder = tmp_path / "new" / "folder"
    result = invoke("init", folder)
    assert result.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    (key,) = re.findall(r"^  (idv_\S+)$", result.stdout, re.MULTILINE)
    check_token(key)
    assert all(str(folder / name) in result.stdout for name in FILES)
    assert not any(key.encode() in path.read_bytes() for path in folder.iterdir())
    listed = invoke("keys", "list", "--json", "--config", folder / "config.yaml")
    assert [(each["id"], each["state"]) for each in json.loads(listed.stdout)] == [
        ("first", "valid")
    ]


@pytest.mark.parametrize("kind", ["yaml", "sqlite", "postgres", "ldap", "upstream"])
def test_example_of_a_kind_passes_check(invoke: Invoke, tmp_path: Path, kind: str) -> None:
    """With the secret in the file that it names, also once the line of a canary is no comment."""
    invoke("init", "--from", kind, tmp_path)
    text = (config := tmp_path / "config.yaml").read_text()
    for name in re.findall(r"\$\{file:(.*?)\}", text):
        (tmp_path / name).write_text("postgresql://db.example.org/people")
    done = invoke("check", "--config-only", "--config", config)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"users ({kind})" in done.stdout
    assert "not resolved" not in done.stdout
    is_directory = kind not in {"yaml", "sqlite"}
    assert ('# canary: {nickname: "@idv-canary", card_number: "90' in text) is is_directory
    config.write_text(text.replace("# canary: {", "canary: {"))
    assert invoke("check", "--config-only", "--config", config).exit_code == 0


def test_printed_import_fills_the_example_of_sqlite(invoke: Invoke, tmp_path: Path) -> None:
    output = invoke("init", "--from", "sqlite", tmp_path).stdout
    (line,) = re.findall(r"^  tornado-idv (users import .*)$", output, re.MULTILINE)
    assert invoke(*shlex.split(line)).exit_code == 0
    assert invoke("lookup", "@bob", "--config", tmp_path / "config.yaml").exit_code == 0


def test_comment_for_editors_names_a_command_that_says_how(invoke: Invoke, tmp_path: Path) -> None:
    """A line that names the schema itself would be an error in an editor, without that file."""
    invoke("init", tmp_path)
    text = (tmp_path / "config.yaml").read_text()
    (line,) = re.findall(r"^# .* in an editor: tornado-idv (.*)$", text, re.MULTILINE)
    described = " ".join(invoke(*line.split()).stdout.split())
    (demo, *_) = (ROOT / "config.yaml").read_text().splitlines()
    assert f'"{demo}"' in described
    assert "tornado-idv schema > config.schema.json" in described
    assert "$schema" not in text


def test_end_says_what_is_left_to_do(invoke: Invoke, tmp_path: Path) -> None:
    write = f"edit config.yaml, write {tmp_path}/{{}} with mode 600, and "
    for kind, todo in {
        "postgres": f"install asyncpg, {write.format('postgres/postgres.dsn')}",
        "upstream": write.format("upstream/upstream.token"),
        "yaml": "",
    }.items():
        output = invoke("init", "--from", kind, tmp_path / kind).stdout
        assert f"Now {todo}run\n" in output
        assert (" with a user of yours" in output) == bool(todo)


def test_the_printed_request_works(invoke: Invoke, tmp_path: Path) -> None:
    """The curl line asks for a user that the fixture holds."""
    output = invoke("init", tmp_path).stdout
    curl = shlex.split(output.splitlines()[-1])
    headers = dict(curl[i + 1].split(": ", 1) for i, word in enumerate(curl) if word == "-H")
    assert curl[:2] == ["curl", "http://127.0.0.1:8080/api/v1/identify/url"]
    body = curl[curl.index("-d") + 1].encode()
    config = (tmp_path / "config.yaml").read_text()
    with serving(
        config.replace("port: 8080", "port: 0").replace("port: 8081", "port: 0"), tmp_path
    ) as service:
        client = Client(service.port)
        found = client.post("/api/v1/identify/url", body, headers)
        assert (found.status, json.loads(found.body)["nickname"]) == (200, "@alice")
        assert client.post("/api/v1/identify/url", body).status == 401


@pytest.mark.parametrize(
    ("name", "reported"),
    [("my-service", None), ("my service", None), ("my\nservice", "config.yaml")],
    ids=["plain", "blank", "line break"],
)
def test_the_configuration_names_the_check_command(
    invoke: Invoke, tmp_path: Path, name: str, reported: str | None
) -> None:
    """But for a folder that no comment can name; it is quoted for a shell."""
    output = invoke("init", tmp_path / name).stdout
    path = tmp_path / name / "config.yaml"
    (line,) = re.findall(r"^# After a change: (.*)$", path.read_text(), re.MULTILINE)
    assert shlex.split(line) == ["tornado-idv", "check", "--config", reported or str(path)]
    assert invoke("check", "--config", path).exit_code == 0
    (line,) = re.findall(r"^  (tornado-idv serve --config (?:'[^']*'|\S+))$", output, re.MULTILINE)
    assert shlex.split(line) == ["tornado-idv", "serve", "--config", str(path)]


@pytest.mark.parametrize("name", FILES)
def test_existing_files_are_never_overwritten(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nor is a dangling link written through, or a file that appears after the check."""
    path = tmp_path / name
    path.symlink_to("elsewhere")
    result = invoke("init", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"would overwrite {path}; nothing was written\n"
    assert [*tmp_path.iterdir()] == [path]
    path.unlink()
    path.write_text("mine")
    monkeypatch.setattr("os.path.lexists", lambda _: False)
    result = invoke("init", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match(f"{re.escape(str(path))}: .*(File|already) exists", result.stderr)
    assert path.read_text() == "mine"


def test_failure_of_the_key_store_leaves_no_file(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "keys.db-journal").touch()
    assert (invoke("init", tmp_path).exit_code, len([*tmp_path.iterdir()])) == (1, 1)


def test_a_folder_that_cannot_be_written_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("init", tmp_path / "file" / "folder")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be written: Not a directory" in result.stderr


@pytest.mark.slow
def test_files_whose_key_cannot_be_printed_are_removed(tmp_path: Path) -> None:
    done = command("init", tmp_path / "new", output="/dev/full")
    assert done.returncode == 3
    assert done.stderr.startswith("standard output cannot be written: ")
    assert list((tmp_path / "new").iterdir()) == []
