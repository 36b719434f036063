"""`server.workers: auto`, with the files of several machines."""

import os
import sys
from pathlib import Path

import pytest

from support.processes.process import Invoke
from tornado_idv.errors import SettingError
from tornado_idv.service.cpus import usable_cpus, worker_count

V2 = "0::/service"
MIXED = "9:name=systemd:/\n0::/service\n4:cpu,cpuacct:/docker/1"


MACHINES = {
    "without a quota file": (V2, {}, 8),
    "no limit": (V2, {"service/cpu.max": "max 100000"}, 8),
    "rounded up": (V2, {"service/cpu.max": "150000 100000"}, 2),
    "more than the affinity": (V2, {"service/cpu.max": "1600000 100000"}, 8),
    "limit of the cgroup above": (
        "0::/a/b",
        {"a/cpu.max": "300000 100000", "a/b/cpu.max": "400000 100000"},
        3,
    ),
    "the root as a container sees it": ("0::/", {"cpu.max": "300000 100000"}, 3),
    "outside of the mount": ("0::/../x", {"cpu.max": "300000 100000"}, 3),
    "beside version 1": (MIXED, {"service/cpu.max": "200000 100000"}, 2),
    "no cgroups": ("", {}, 8),
}


@pytest.mark.parametrize(("cgroups", "files", "expected"), MACHINES.values(), ids=MACHINES)
def test_quota_limits_the_affinity(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroups: str,
    files: dict[str, str],
    expected: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    mount = tmp_path / "cgroup"
    for name, text in files.items():
        path = mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "cgroups").write_text(f"{cgroups}\n" if cgroups else "")
    assert usable_cpus(tmp_path / "cgroups", mount) == expected


def test_macos_has_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say which CPUs a process may use, and gives one socket all connections."""
    assert worker_count("auto") == usable_cpus() >= 1
    assert worker_count(3) == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert worker_count("auto") == worker_count(1) == 1
    with pytest.raises(SettingError, match="several workers need Linux; write 1 or auto"):
        worker_count(2)


def test_check_names_the_setting_of_too_many_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, invoke: Invoke
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    config = tmp_path / "config.yaml"
    users = "backends: [{name: users, kind: yaml, path: users.yaml}]"
    config.write_text(f"profile_sites: [https://x.example]\nserver: {{workers: 2}}\n{users}\n")
    done = invoke("check", "--config", config)
    assert f"{config}:2:10: server.workers: several workers" in done.stderr
