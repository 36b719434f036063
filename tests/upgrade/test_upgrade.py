"""Files of an earlier version still work.

files/ was written by version 0.1.0: ``init``, ``users import`` of 20 made-up
users, and the commands of keys; the databases are dumps. Its keys are in no other place.
responses.json has its responses to some requests.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.processes.process import command, running
from support.processes.service import Client, Reply

pytestmark = pytest.mark.slow

FILES = Path(__file__).parent / "files"
KEYS = {
    "shop": ("idv_shop_Xs2AFLTnMCe3GecpsoTETrXRjm98ynnn_fc323576", 200),
    "rotated, old token": ("idv_rotated_BrrfBdKf6qIrLP6uTnGoaTqQgu47SuSC_f97f7149", 200),
    "rotated, new token": ("idv_rotated_1bHtXHAiXsoGWy7xr3GVthtdKGh8gS4K_1349a332", 200),
    "in config.yaml": ("idv_first_NC7kn0xQEpLZJyzhmqjz1fO9L7TbPuyp_8295776d", 200),
    "revoked": ("idv_spare_Jtxl73BZldJQu2oZCWGdsznxzvt9R1i6_6987d1cc", 401),
    "disabled": ("idv_paused_yN7RaysMjx3lCw2K298lbF8fZj0VMekK_f63ff92a", 401),
    "of another scope": ("idv_limited_si4ZfkiG537eIj60s90r2BqPTRc72zJa_f177d6bd", 403),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("keys", "members"):
        path = tmp_path / f"{name}.db"
        with closing(sqlite3.connect(path)) as database:
            database.executescript((FILES / f"{name}.sql").read_text(encoding="utf-8"))
        path.chmod(0o600)
    shutil.copy(FILES / "users.yaml", tmp_path)
    text = (FILES / "config.yaml").read_text(encoding="utf-8")
    (tmp_path / "config.yaml").write_text(text.replace("port: 8080", "port: 0"), encoding="utf-8")
    return tmp_path / "config.yaml"


def test_configuration_is_valid(config: Path) -> None:
    done = command("check", "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_refused_now_is_in_the_guide(config: Path) -> None:
    """The message has what to write."""
    upstream = "{name: crm, kind: upstream, base_url: 'http://x', by_nickname: {url: '/{nickname}'}"
    response = "response: {plan: p, card_number: c, nickname: n, found_when: '!data.error'}"
    text = config.read_text(encoding="utf-8")
    text = text.replace("backends:", f"backends:\n  - {upstream}, {response}}}", 1)
    config.write_text(text, encoding="utf-8")
    done = command("check", "--config-only", "--config", str(config))
    assert (done.returncode, "write !(data.error) for !data.error" in done.stderr) == (1, True)
    guide = Path(__file__).parents[2] / "docs" / "guide" / "upgrading.md"
    assert '| `found_when: "!data.error"`' in guide.read_text(encoding="utf-8")


def test_keys_and_users_are_served_with_the_responses_of_the_earlier_version(config: Path) -> None:
    """Byte for byte: of users in both backends, and of errors."""
    requests = json.loads((FILES / "responses.json").read_text(encoding="utf-8"))

    def ask(client: Client, path: str, body: object, token: str) -> Reply:
        fields = {"Authorization": f"Bearer {token}"}
        return client.post(path, json.dumps(body).encode(), fields)

    with running(config) as service:
        client = Client(service.port)
        user = "/api/v1/identify/url", {"input": "@chen6_0000000"}
        statuses = {name: ask(client, *user, token).status for name, (token, _) in KEYS.items()}
        for each in requests:
            reply = ask(client, each["path"], each["body"], KEYS[each["key"]][0])
            assert (reply.status, reply.body.decode()) == (each["status"], each["response"])
    assert statuses == {name: status for name, (_, status) in KEYS.items()}
    assert {each["status"] for each in requests} == {200, 401, 403, 404, 422}


def test_keys_are_listed_as_before_and_can_be_changed(config: Path) -> None:
    listed = json.loads(command("keys", "list", "--json", "--config", str(config)).stdout)
    assert listed == json.loads((FILES / "keys.json").read_text(encoding="utf-8"))
    for change in (("rotate", "shop"), ("enable", "paused"), ("issue", "new")):
        assert command("keys", *change, "--config", str(config)).returncode == 0
    assert command("keys", "enable", "spare", "--config", str(config)).returncode == 1


def test_users_are_counted_and_merged(config: Path, tmp_path: Path) -> None:
    arguments = ("--config", str(config))
    assert "20" in command("users", "count", "--from", "members", *arguments).stdout
    (tmp_path / "more.csv").write_text("nickname,card_number,plan\nnew,99,Free\n", encoding="utf-8")
    more = str(tmp_path / "more.csv")
    done = command("users", "import", more, "--to", "members", "--merge", *arguments)
    assert done.returncode == 0, done.stderr
    assert "21" in command("users", "count", "--from", "members", *arguments).stdout
