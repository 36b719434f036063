"""With `server.watch_config` the service follows the files that its configuration names."""

import signal
from pathlib import Path

import pytest

from support.processes.process import eventually, running
from support.processes.reloads import config, reloadable
from support.processes.service import Client, lookup_request, write_config
from tornado_idv.keys.token import digest, issue

OLD, NEW = issue("shop"), issue("shop")
CONFIG = """\
profile_sites: [https://profiles.example]
server: {port: 0, watch_config: true, workers: 2}
auth:
  keys: [{id: shop, sha256: "${file:secret/shop.sha256}"}]
backends: [{name: users, kind: yaml, path: users.yaml}]
"""


def mount(folder: Path, text: str) -> None:
    """Write a Secret as Kubernetes does: links through ``..data``, which is replaced at once."""
    folder.mkdir(exist_ok=True)
    version = folder / f"..{len([*folder.iterdir()])}"
    version.mkdir()
    (version / "shop.sha256").write_text(text)
    if not (folder / "shop.sha256").is_symlink():
        (folder / "shop.sha256").symlink_to("..data/shop.sha256")
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")


def status(port: int, token: str) -> int:
    (reply,) = Client(port).raw(lookup_request("@alice", token))
    return reply.status


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_rotated_secret_is_effective_without_a_restart(tmp_path: Path, workers: int) -> None:
    text = CONFIG.replace("workers: 2", f"workers: {workers}")
    path = write_config(tmp_path, text.replace("true", "false"))
    mount(tmp_path / "secret", digest(OLD).hex())
    with running(path) as service:
        assert (status(service.port, OLD), status(service.port, NEW)) == (200, 401)
        write_config(tmp_path, text)
        service.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in service.read_log())
        mount(tmp_path / "secret", "no digest")
        eventually(lambda: "configuration not reloaded" in service.read_log())
        assert status(service.port, OLD) == 200
        mount(tmp_path / "secret", digest(NEW).hex())
        for _ in range(4):  # of several workers, which get connections at random
            eventually(lambda: (status(service.port, OLD), status(service.port, NEW)) == (401, 200))


async def test_secret_that_was_missing_in_a_reload_is_read_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(OLD)
    async with reloadable(tmp_path, config(key="'${file:old}'")) as harness:

        async def statuses_later() -> list[int]:
            for _ in range(2):  # only a file that rests is read
                await harness.service.reloader.poll()
            return [(await harness.ask("@alice", key=key)).status for key in (OLD, NEW)]

        harness.write(config(key="'${file:new}'"))
        assert await statuses_later() == [200, 401]
        (tmp_path / "new").write_text(NEW)
        assert await statuses_later() == [401, 200]
