"""Commands know a shadow, which is not asked where backends answer."""

import json
from collections.abc import Callable
from pathlib import Path

from support.processes.process import Invoke
from support.processes.service import FIXTURE

Config = Callable[..., Path]
USERS = "name: users, kind: yaml, path: users.yaml"
SHADOW = "name: new, kind: yaml, path: new.yaml, shadow: {sample: 5%}"


def test_check_warns_of_a_shadow_that_cannot_be_opened(
    invoke: Invoke, config: Config, folder: Path
) -> None:
    """The service starts without it."""
    file = config(USERS, SHADOW)
    done = invoke("check", "-c", file)
    assert done.exit_code == 0
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"warning: {file}:4:5: backends[1]: ")
    assert "new.yaml: cannot be read" in warning
    assert "shadow         new (yaml), compared with 5% of lookups" in done.stdout
    (folder / "new.yaml").write_text("users: []\n")
    done = invoke("check", "-c", file)
    assert (done.exit_code, done.stderr) == (0, "")


def test_lookup_asks_a_shadow_only_by_name(invoke: Invoke, config: Config, folder: Path) -> None:
    (folder / "new.yaml").write_text(FIXTURE.replace("Free", "New"))
    file = config(USERS, SHADOW.replace("5%", "5%, state: new.db"))
    done = invoke("lookup", "@bob", "-c", file, "--explain", "--json")
    assert [each["backend"] for each in json.loads(done.stdout)["backends"]] == ["users"]
    done = invoke("lookup", "@alice", "-c", file, "--backend", "new", "--json")
    assert (done.exit_code, json.loads(done.stdout)["plan"]) == (0, "New")
    assert not (folder / "new.db").exists()
