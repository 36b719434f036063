"""Passwords in URLs that are not percent-encoded, or whose scheme is mistyped."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.processes.ports import free_port
from support.processes.process import Invoke
from support.processes.reloads import config as service_config
from support.processes.reloads import reloadable

SECRETS = ("Zeugma", "Ocelot")
PASSWORDS = [each.join(SECRETS) for each in ":/?#[]@%, "]
PASSWORDS += [f"12{each}{SECRETS[0]}" for each in ":/?#@"]  # which looks like a port
SERVER = "://idv:{}@127.0.0.1:1/0"
SHARED = "kind: redis, secret: 0123456789abcdef0123456789abcdef"
YAML = "name: a, kind: yaml, path: users.yaml"
MAPPED = "response: {plan: a, card_number: b, nickname: c}"
# The template of a URL, a backend, and further settings with it, if there are any.
SETTINGS: dict[str, tuple[str, ...]] = {
    "auth.store": (f"postgresql{SERVER}", YAML, "auth: {store: URL}"),
    "dsn": (f"postgres{SERVER}", "name: a, kind: postgres, dsn: URL"),
    "notify.dsn": (
        f"postgresql{SERVER}",
        "name: a, kind: postgres, dsn: 'postgresql://127.0.0.1:1/', notify: {dsn: URL}",
    ),
    "url": (f"redis{SERVER}", "name: a, kind: redis, url: URL"),
    "url of a socket": ("unix://idv:{}@/nowhere", "name: a, kind: redis, url: URL"),
    "sentinels": (
        f"rediss{SERVER}",
        "name: a, kind: redis, url: 'redis://a', sentinels: [URL], service: a",
    ),
    "shared_cache.url": (f"redis{SERVER}", YAML, f"shared_cache: {{{SHARED}, url: URL}}"),
    "base_url": (f"http{SERVER}", "name: a, kind: upstream, base_url: URL"),
    "request": (
        "https://idv:x{}@127.0.0.1:1/{{nickname}}",
        f"name: a, kind: upstream, by_nickname: {{url: URL}}, {MAPPED}",
    ),
    "token_url": (
        f"http{SERVER}",
        (
            "name: a, kind: upstream, base_url: 'http://127.0.0.1:1', "
            "auth: {kind: oauth2, token_url: URL, client_id: a, client_secret: b}"
        ),
    ),
}
COMMANDS = (
    "check",
    "check --json",
    "check --config-only",
    "lookup @alice --explain",
    "keys list",
    "keys issue shop --json",
    "users export --from a",
    "lookup @alice --steps --backend a",
    "postgres init --apply",
    "status",
    "serve",
)
# Commands that read the configuration in different ways.
READERS = ("check", "keys list", "status", "serve")


def write(folder: Path, template: str, backend: str, more: str = "") -> Path:
    path = folder / "config.yaml"
    quoted = "'{}'".format(template.replace("'", "''"))
    text = (
        f"profile_sites: [https://profiles.example]\nadmin: {{port: {free_port()}}}\n"
        f"{more}\nbackends: [{{{backend}}}]\n"
    )
    path.write_text(text.replace("URL", quoted), encoding="utf-8")
    return path


@pytest.fixture
def reported(invoke: Invoke, folder: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """Run commands with this URL, and return what they print, log and raise."""

    def run(setting: str, url: str, commands: Sequence[str] = READERS) -> str:
        path = write(folder, url, *SETTINGS[setting][1:])
        texts: list[str] = []
        for command in commands:
            if command != "serve" or not texts[0].startswith("check: 0"):
                result = invoke(*command.split(), "-c", path)
                texts.append(f"{command}: {result.exit_code} {result.output}")
        return "\n".join([*texts, caplog.text])

    caplog.set_level(logging.DEBUG)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("number", "setting"), [*enumerate(SETTINGS)])
def test_no_command_shows_a_part_of_a_password(
    reported: Callable[..., str], number: int, setting: str
) -> None:
    """Whether or not it is percent-encoded where it must be; each setting has a third of them."""
    for password in PASSWORDS[number % 3 :: 3]:
        text = reported(setting, SETTINGS[setting][0].format(password), COMMANDS)
        for secret in SECRETS:
            assert secret not in text, (password, text)


@pytest.mark.parametrize("setting", ["auth.store", "dsn", "url", "base_url"])
@pytest.mark.parametrize(
    "start", ["postgesql://", "redis:/", "postgresql//", "http:", "postgres=", "//", ""]
)
def test_no_command_shows_a_url_with_a_mistyped_scheme(
    reported: Callable[..., str], setting: str, start: str
) -> None:
    for password in (SECRETS[0], "/".join(SECRETS)):
        text = reported(setting, f"{start}idv:{password}@127.0.0.1:1/0")
        for secret in SECRETS:
            assert secret not in text, text


@pytest.mark.parametrize(
    "text", ["host=a password=Zeugma", "postgresql:/a:Zeugma", "a:Zeugma@b?://c", "1://a:Zeugma@b"]
)
def test_no_command_shows_what_is_neither_a_path_nor_a_url(
    reported: Callable[..., str], text: str
) -> None:
    shown = reported("auth.store", text)
    assert "auth.store: neither a path nor a URL; write postgresql://" in shown
    assert "Zeugma" not in shown


def test_url_as_a_file_of_keys_is_refused_without_its_password(invoke: Invoke) -> None:
    for start in ("postgresql://", "postgres//", "//"):
        result = invoke("keys", "list", "--store", f"{start}idv:{SECRETS[0]}@127.0.0.1:1/0")
        assert result.exit_code == 1
        assert result.output.startswith("--store: must be a file")
        assert SECRETS[0] not in result.output


@pytest.mark.parametrize("name", ["keys.db", "./a=b@c:d.db", "a@b.db", "x/keys.db", "a:b.db"])
def test_path_of_a_key_store_may_have_any_form(invoke: Invoke, folder: Path, name: str) -> None:
    path = write(folder, name, YAML, "auth: {store: URL}")
    (folder / "x").mkdir()
    assert invoke("keys", "issue", "shop", "--create", "-c", path).exit_code == 0
    assert (folder / name).exists()


async def test_reload_reports_no_part_of_a_password(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with reloadable(folder, service_config()) as harness:
        for start in ("postgresql://", "postgesql://", "postgresql:/", "postgresql:"):
            url = f"{start}idv:{'/'.join(SECRETS)}@127.0.0.1:1/0"
            new = service_config().replace("auth: {", f"auth: {{store: '{url}', ")
            result = await harness.reload(new)
            assert result.code is not None
            shown = f"{result} {harness.service.reloader.last} {caplog.text}"
            for secret in SECRETS:
                assert secret not in shown
