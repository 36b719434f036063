"""``tornado-idv check``, what it shows of good settings, and ``tornado-idv schema``."""

import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import jsonschema
import pytest

from support.fixtures.configs import GOOD, Load
from support.http.certificate import ENCRYPTED_KEY, OTHER_KEY, SELF_SIGNED
from support.processes.editor import as_editor_reads
from support.processes.permissions import public_directory, unprivileged
from support.processes.process import Invoke
from tornado_idv.features.check.summary import summary
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.interfaces.shared import SharedCacheOptions

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "config.schema.json"
OUR_CONFIGS = ("config.yaml", "deploy/demo/chain.yaml", "deploy/demo/origin.yaml")
USERS = "name: users, kind: yaml, path: users.yaml"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
Config = Callable[..., Path]
BROKEN = """\
profile_sites: [https://profiles.example]
sever: {port: 8080}
server: {port: 99999}
backends:
  - {name: users, kind: yml, path: users.yaml}
"""


def test_every_problem_is_reported_with_its_position(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BROKEN)
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    lines = ("2:1: sever: ", "3:16: server.port: ", "5:25: backends[0].kind: ")
    for shown, line in zip(result.stderr.splitlines(), lines, strict=True):
        assert shown.startswith(f"{path}:{line}")
    result = invoke("check", "-c", path, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    record = json.loads(result.stdout)
    assert (record["ok"], [each["line"] for each in record["problems"]]) == (False, [2, 3, 5])
    assert set(record["problems"][0]) == {"file", "line", "column", "path", "message"}
    path.write_text(BROKEN + "".join(f"setting_{i}: 1\n" for i in range(1000)))
    *lines, last = invoke("check", "-c", path).stderr.splitlines()
    assert (len(lines), last) == (100, "and 903 more problems")
    record = json.loads(invoke("check", "-c", path, "--json").stdout)
    assert len(record["problems"]) == 1003


def test_a_missing_file_is_reported(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"{path}: cannot be read: No such file or directory; "
        "name another file with --config, or write one with: tornado-idv init\n"
    )
    (problem,) = json.loads(invoke("check", "-c", path, "--json").stdout)["problems"]
    assert problem["message"] == f"{path}: cannot be read: No such file or directory"


def test_a_file_that_may_not_be_read_is_no_wrong_use(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command exits with 3: the file may be readable soon."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may read each file
    with public_directory() as folder:
        (path := folder / "config.yaml").touch(mode=0)
        with unprivileged():
            for command, code in (("check", 1), ("health", 3)):
                result = invoke(command, "-c", path)
                assert result.exit_code == code
                assert f"{path}: cannot be read: Permission denied" in result.stderr


def test_folders_above_the_current_one_may_be_inaccessible(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, after `runuser`."""
    with public_directory() as parent:
        (folder := parent / "folder").mkdir(0o755)
        (folder / "config.yaml").write_text(
            "profile_sites: ['https://a.example']\n"
            "backends: [{name: crm, kind: upstream, base_url: 'http://127.0.0.1:1'}]\n"
        )
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            invoke("check")  # imports all modules that it needs, before the permissions are gone
            parent.chmod(0o600)
            with unprivileged():
                result = invoke("check")
        assert (result.exit_code, result.exception) == (0, None)


WRONG_FIXTURE = "users:\n  - {nickname: alice, plan: Free}\n  - {nickname: bob, plan: Free}\n"
GONE = "name: gone, kind: yaml, path: gone.yaml"
WRONG = "name: wrong, kind: yaml, path: wrong.yaml"


def test_backends_that_cannot_be_opened_are_reported(
    invoke: Invoke, config: Config, folder: Path
) -> None:
    """Of every backend, all of it, at the backend's place in the file."""
    (folder / "wrong.yaml").write_text(WRONG_FIXTURE)
    path = config(GONE, USERS, WRONG, f"{GONE}, shadow: {{sample: 1%}}".replace("gone,", "new,"))
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    gone, wrong = folder / "gone.yaml", folder / "wrong.yaml"
    assert result.stderr.splitlines() == [
        f"warning: {path}:6:5: backends[3]: {gone}: cannot be read: No such file or directory",
        f"{path}:3:5: backends[0]: {gone}: cannot be read: No such file or directory",
        f"{path}:5:5: backends[2]: {wrong}:2:5: users[0].card_number: missing",
        f"{path}:5:5: backends[2]: {wrong}:3:5: users[1].card_number: missing",
    ]


TLS = "server: {tls: {cert_file: cert.pem, key_file: key.pem}}\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ((None, SELF_SIGNED), "{folder}/cert.pem: cannot be read: No such file or directory"),
        ((SELF_SIGNED, None), "{folder}/key.pem: cannot be read: No such file or directory"),
        ((SELF_SIGNED, ""), "{both}: not a certificate and key in PEM"),
        (("", SELF_SIGNED), "{both}: not a certificate and key in PEM"),
        ((SELF_SIGNED, OTHER_KEY), "{both}: the key does not match"),
        ((SELF_SIGNED, ENCRYPTED_KEY), "{folder}/key.pem: the key is encrypted; decrypt it"),
    ],
    ids=["no certificate", "no key", "empty key", "empty certificate", "another key", "encrypted"],
)
def test_tls_files_are_loaded(
    invoke: Invoke, config: Config, folder: Path, files: tuple[str, str], problem: str
) -> None:
    for name, text in zip(("cert.pem", "key.pem"), files, strict=True):
        if text is not None:
            (folder / name).write_text(text)
    path = config(USERS, more=TLS)
    result = invoke("check", "-c", path)
    assert (result.exit_code, result.stdout) == (1, "")
    both = f"{folder}/cert.pem and {folder}/key.pem cannot be used for TLS"
    reported = problem.format(folder=folder, both=both)
    assert result.stderr == f"{path}:2:10: server.tls: {reported}\n"
    assert invoke("check", "-c", path, "--config-only").exit_code == 0


SECRETS = """\
server: {port: "${env:NO_PORT}"}
auth: {keys: [{id: shop, sha256: "${file:no.sha256}", owner: "${env:NO_OWNER}"}]}
"""


def test_config_only_needs_no_secrets(invoke: Invoke, config: Config) -> None:
    absent = [
        "server.port: the environment variable NO_PORT is not set",
        "auth.keys[0].sha256: the file no.sha256 cannot be read: No such file or directory",
        "auth.keys[0].owner: the environment variable NO_OWNER is not set",
    ]
    path = config(USERS, more=SECRETS)
    result = invoke("check", "-c", path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 3)
    record = json.loads(invoke("check", "-c", path, "--config-only", "--json").stdout)
    assert record == {"ok": True, "summary": {"not_resolved": absent}, "warnings": []}
    result = invoke("check", "-c", path, "--config-only")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [f"ok: {path}", "", *(f"not resolved   {each}" for each in absent)]
    assert result.stdout.splitlines() == lines
    # Settings that need none of them are summarized.
    upstream = "name: %s, kind: upstream, base_url: 'http://x', %s"
    token = upstream % ("crm", "auth: {kind: bearer, token: '${env:NO}'}")
    bird = upstream % ("hr", "canary: {nickname: '@bird'}")
    result = invoke("check", "-c", config(token, bird, USERS), "--config-only")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "recommended    a canary (a user who must exist) for crm\n" in result.stdout
    assert "listens on     http://127.0.0.1:8080\n" in result.stdout
    assert result.stdout.count("not resolved") == 1
    # Others are reported, also a reference that could be resolved nowhere.
    wrong = "logging: {level: loud, format: '${env}'}\n"
    result = invoke("check", "-c", config(USERS, more=SECRETS + wrong), "--config-only")
    assert (result.exit_code, result.stdout) == (1, "")
    level, reference = result.stderr.splitlines()
    assert level == f"{path}:4:18: logging.level: must be debug, info, warning or error"
    assert reference.startswith(f"{path}:4:32: logging.format: not a reference; ")


@pytest.mark.parametrize(
    ("name", "mode", "folder_mode", "warns"),
    [
        ("key", 0o644, 0o755, True),
        ("key", 0o644, 0o711, True),
        ("key", 0o640, 0o755, False),
        ("key", 0o644, 0o750, False),
        ("tls.key", 0o644, 0o755, True),
        ("tls.pem", 0o644, 0o755, False),
        ("both.pem", 0o644, 0o755, True),
    ],
)
def test_secret_that_every_user_may_read_gives_a_warning(
    invoke: Invoke, name: str, mode: int, folder_mode: int, *, warns: bool
) -> None:
    """A certificate is no secret, but its key is."""
    upstream = "{name: crm, kind: upstream, base_url: 'http://127.0.0.1:1', auth: %s}"
    auth = "{kind: bearer, token: '${file:secrets/key}'}"
    cert, key = ("both.pem", "both.pem") if name == "both.pem" else ("tls.pem", "tls.key")
    tls = f"server: {{tls: {{cert_file: secrets/{cert}, key_file: secrets/{key}}}}}\n"
    with public_directory() as folder:
        (files := folder / "private" / "files").mkdir(parents=True)
        (secrets := folder / "secrets").symlink_to(files)
        for each in ("key", cert, key):
            (secrets / each).write_text(SELF_SIGNED)
            (secrets / each).chmod(mode if each == name else 0o600)
        files.chmod(0o755)
        files.parent.chmod(folder_mode)
        path = folder / "config.yaml"
        path.write_text(
            f"profile_sites: ['https://a.example']\n{tls}backends: [{upstream % auth}]\n"
        )
        (secrets / "key").write_text("secret")
        done = invoke("check", "-c", path)
        assert done.exit_code == 0
        public = secrets / name
        text = f"every user of this machine can read {public}; run chmod o= {public}"
        assert (f"warning: {path}:1:1: {text}\n" in done.stderr) is warns
        assert ("every user" in done.stderr) is warns


@pytest.mark.parametrize(
    ("server", "admin", "warning"),
    [
        ("{host: 0.0.0.0, port: 0}", "{port: 0}", "2:10: server.host: plain HTTP on "),
        ("{listen: ['0.0.0.0:0']}", "{port: 0}", "2:10: server.listen: plain HTTP on "),
        ("{host: 127.0.0.1, port: 0}", "{port: 0}", None),
        ("{port: 8081}", "{port: 8081}", "3:9: admin.port: the public listener has this address"),
    ],
)
def test_listeners_that_may_be_a_mistake_give_a_warning(
    invoke: Invoke, config: Config, server: str, admin: str, warning: str | None
) -> None:
    path = config(USERS, more=f"server: {server}\nadmin: {admin}\n")
    for options in ((), ("--config-only",)):
        result = invoke("check", "-c", path, *options)
        lines = [f"warning: {path}:{warning}"] if warning else []
        assert result.exit_code == 0
        assert [each[: len(lines[0])] for each in result.stderr.splitlines()] == lines


def test_warnings_and_problems_of_backends_are_printed(
    invoke: Invoke, config: Config, folder: Path
) -> None:
    """Once more by each run, though the log is not set up; a warning is no problem."""
    with closing(sqlite3.connect(folder / "users.db")) as database:  # which reads every row
        database.execute("CREATE TABLE users (nickname TEXT, card_number TEXT, plan TEXT)")
    before = logging.getLogger().handlers[:]
    unindexed = "name: slow, kind: sqlite, path: users.db"
    path = config(USERS, unindexed)
    for _ in range(2):
        result = invoke("check", "-c", path)
        assert (result.exit_code, result.stdout.partition(":")[0]) == (0, "ok")
        lines = result.stderr.splitlines()
        assert lines
        assert all(line.startswith(f"warning: {path}:4:5: backends[1]: ") for line in lines)
    record = json.loads(invoke("check", "-c", path, "--json").stdout)
    assert (record["ok"], len(record["warnings"])) == (True, len(lines))
    result = invoke("check", "-c", config(unindexed, GONE))
    assert result.exit_code == 1
    first, *_, last = result.stderr.splitlines()
    assert first.startswith(f"warning: {path}:3:5: backends[0]: ")
    assert last.startswith(f"{path}:4:5: backends[1]: ")
    path = config(USERS, more="server: {workers: 2}\n")
    with patch("sys.platform", "darwin"):
        result = invoke("check", "-c", path)
    assert result.stderr.startswith(f"{path}:2:10: server.workers: several workers need Linux; ")
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize("command", [("check",), ("lookup", "@a"), ("migrate", "status")])
def test_error_in_a_task_of_a_plugin_is_logged_without_users(
    invoke: Invoke, config: Config, command: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("asyncio")
    logger.filters.clear()
    invoke(*command, "-c", config(USERS))
    logger.error("failed: 4000", exc_info=KeyError("4000"))
    assert ("KeyError" in caplog.text, "4000" in caplog.text) == (True, False)


def test_the_schema_in_the_repository_is_up_to_date(invoke: Invoke) -> None:
    printed = invoke("schema").stdout
    assert SCHEMA.read_text(encoding="utf-8") == printed, (
        "renew it with: tornado-idv schema > config.schema.json"
    )


@pytest.mark.parametrize("name", OUR_CONFIGS)
def test_our_configurations_are_valid(invoke: Invoke, name: str) -> None:
    """For the check, which prints a summary, and for an editor that reads the schema."""
    path = ROOT / name
    result = invoke("check", "-c", path, "--config-only")
    assert (result.exit_code, result.stderr) == (0, "")
    ok, blank, *rows = result.stdout.splitlines()
    assert (ok, blank) == (f"ok: {path}", "")
    assert all(re.match(r"[a-z0-9 ]{14} \S", row) for row in rows)
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    read = as_editor_reads(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(read)] == []


def test_summary_of_a_minimal_file(load_text: Load, kinds: Kinds) -> None:
    assert summary(load_text(GOOD), NOW, kinds) == [
        ("listens on", "http://127.0.0.1:8080"),
        ("profile sites", "https://profiles.example"),
        ("keys", "none: every request will be rejected"),
        ("backend 1", 'members (table), timeout 800ms, cached 5m, "not found" cached 30s'),
        ("cache", "up to 100000 found, 20000 not found"),
    ]


def test_summary_of_a_large_file(load_text: Load, kinds: Kinds) -> None:
    text = f"""\
profile_sites: [https://profiles.example, https://old.example]
server: {{host: "::1", port: 0, base_path: /identity, tls: {{cert_file: c, key_file: k}}}}
auth:
  keys:
    - {{id: shop, sha256: {"a" * 64}, expires: 2026-06-01T00:00:01Z, limits: {{requests: 9/s}}}}
    - {{id: past, sha256: {"b" * 64}, expires: 2026-06-01T02:00:00+02:00}}
    - id: soon
      sha256: {"c" * 64}
      not_before: 2026-06-01T00:00:01Z
      limits: {{misses: 5/hour}}
    - {{id: demo, token: plain-token-of-a-partner, not_before: 2026-06-01T00:00:00Z}}
backends:
  - {{name: crm, kind: remote, url: x, timeout: 2s, cache_ttl: 0s, negative_ttl: 1.5s}}
  - {{name: members, kind: table, path: x}}
cache: {{ttl: 90s, negative_ttl: 2h, max_entries: 5, max_negative_entries: 6}}
limits:
  requests: 100/second
  misses: {{rate: 300/10 minutes, log_only: true}}
  failed_auth: 60/minute
demo: true
admin: {{port: 9}}
"""
    past, soon = "expired 2026-06-01 02:00 UTC+02:00", "valid from 2026-06-01 00:00 UTC"
    limits = "requests 100/second, misses 300/10 minutes (log only), failed_auth 60/minute"
    assert summary(load_text(text), NOW, kinds) == [
        ("listens on", "https://[::1]:any free port/identity"),
        ("admin listener", "http://127.0.0.1:9"),
        ("profile sites", "https://profiles.example, https://old.example"),
        ("keys", f"4: shop, past ({past}), soon ({soon}), demo"),
        ("limits", f"{limits}, keys with their own limits: 2"),
        ("backend 1", 'crm (remote), timeout 2s, cached 0s, "not found" cached 1.5s'),
        ("backend 2", 'members (table), timeout 800ms, cached 90s, "not found" cached 2h'),
        ("cache", "up to 5 found, 6 not found"),
        ("demo", "yes: auth.keys may contain tokens in plain text"),
    ]


def test_summary_of_a_shadow_and_a_shared_cache(load_text: Load, kinds: Kinds) -> None:
    shadow = "{name: new, kind: table, path: b, shadow: {sample: 2.5%, hits: true}}"
    shared = {"shared_cache": SharedCacheOptions(kind="redis")}
    backends = f"[{shadow}, {shadow.replace(', hits: true', '').replace('new', 'other')}, {{"
    more = "server: {listen: ['unix:/run/s']}\nauth: {store: 'postgresql://u:secret@db/keys'}\n"
    settings = load_text(GOOD.replace("[{", backends) + more).model_copy(update=shared)
    rows = summary(settings, NOW, kinds)
    text = "new (table), compared with 2.5% of lookups, also of cached answers, at most 10/second"
    other = text.replace("new", "other").replace(", also of cached answers", "")
    shown = {("shadow", f"{each} in each process") for each in (text, other)}
    shown |= {("listens on", "unix:/run/s"), ("keys", "none in this file")}
    assert shown | {("key store", "postgresql://…"), ("shared cache", "redis, timeout 20ms")} <= {
        *rows
    }
    assert [label for label, _ in rows if label.startswith("backend")] == ["backend 1"]


def test_at_most_ten_keys_are_listed(load_text: Load, kinds: Kinds) -> None:
    def keys(count: int) -> str:
        entries = "".join(f"  - {{id: k{i}, sha256: {i:064}}}\n" for i in range(count))
        return dict(summary(load_text(f"{GOOD}auth:\n keys:\n{entries}"), NOW, kinds))["keys"]

    assert keys(10) == "10: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9"
    assert keys(12) == "12: k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, and 2 more"
