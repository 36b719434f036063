"""The guides to deploy and to upgrade work as written, and so does the image, in a sandbox.

What cannot be done there is replaced: packages are installed already, and `systemctl` starts what
the units say.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT, code_blocks, page, section
from support.processes.proxies import SEARCH_PATH, find_tool

pytestmark = [pytest.mark.slow, pytest.mark.ci]

VENV = sys.prefix
REPLACED = {
    "apt-get install --yes nginx prometheus python3-venv openssl curl": "true",
    "/usr/bin/python3 -m venv /opt/tornado-idv-1.0": f"ln -s {VENV} /opt/tornado-idv-1.0",
    "/opt/tornado-idv-1.0/bin/pip install .": "true",
}
GUIDE = "in fifteen minutes"
UPGRADE = {
    "/usr/bin/python3 -m venv /opt/tornado-idv-1.1": f"ln -s {VENV} /opt/tornado-idv-1.1",
    "/opt/tornado-idv-1.1/bin/pip install .": "true",
}
# The units are read by sed, so that what runs is what they say. Prometheus scrapes every second.
SYSTEMCTL = r"""
wait_for() {
  for _ in $(seq 200); do
    (: < /dev/tcp/127.0.0.1/$1) 2>/dev/null && return
    sleep 0.05
  done
  exit 1
}
setting() { sed -n "s/^$1=//p" /etc/systemd/system/tornado-idv.service; }
systemctl() {
  case "$*" in
    daemon-reload) ;;
    "restart tornado-idv")
      kill "$service"
      wait "$service"
      systemctl "enable --now tornado-idv" ;;
    "enable --now tornado-idv")
      setpriv --reuid "$(setting User)" --regid "$(setting Group)" --clear-groups --no-new-privs \
        $(setting ExecStart) > /tmp/service.log 2>&1 &
      service=$!
      wait_for 8081 ;;
    "reload nginx") nginx && wait_for 443 ;;
    "restart prometheus")
      sed -i 's/scrape_interval: 15s/scrape_interval: 1s/' /etc/prometheus/prometheus.yml
      prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/tmp/data \
        > /tmp/prometheus.log 2>&1 &
      wait_for 9090 ;;
    *) echo "systemctl $*: not in the guide"; exit 1 ;;
  esac
}
"""
# As a Dockerfile says: an unprivileged user, and a root file system that cannot be written.
CONTAINER = r"""
ln -s {venv} /opt/tornado-idv
mkdir -p /var/lib/tornado-idv /etc/tornado-idv
mount -t tmpfs -o uid=65532,gid=65532,mode=700 tmpfs /var/lib/tornado-idv
cat > /etc/tornado-idv/config.yaml <<'END'
{config}
END
printf 'users:\n- {{nickname: "@alice", card_number: "4000123412341234", plan: Free}}\n' \
  > /etc/tornado-idv/users.yaml
mount -o remount,ro /
export PATH=/opt/tornado-idv/bin:$PATH
cd {workdir}
as_user="setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs"
$as_user touch /tmp/x 2>/dev/null && exit 1
$as_user tornado-idv keys issue shop --create 2>/dev/null > /var/lib/tornado-idv/shop.token
$as_user {command} > /dev/null 2> /var/lib/tornado-idv/log &
pid=$!
for _ in $(seq 100); do (: < /dev/tcp/127.0.0.1/8081) 2>/dev/null && break; sleep 0.05; done
$as_user {health}
curl -sS --fail http://127.0.0.1:8080/api/v1/identify/url -H 'Content-Type: application/json' \
  -H "Authorization: Bearer $(cat /var/lib/tornado-idv/shop.token)" -d '{{"input": "@alice"}}'
kill $pid
wait $pid
echo " stopped with $?"
"""
CONFIG = """\
profile_sites: [https://profiles.example]
server: {host: 0.0.0.0, port: 8080}
admin: {port: 8081}
auth: {store: /var/lib/tornado-idv/keys.db}
backends: [{name: users, kind: yaml, path: users.yaml}]"""


# The interpreter may be in a folder that only root can enter.
_SETUP = """\
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ip link set lo up
chmod 755 "$1/root/root"
exec chroot "$1/root" bash -euc "$2"
"""


def run_in_sandbox(folder: Path, script: str, timeout: float = 100) -> str:
    """Return the output of a bash script; a command that fails ends it, and fails the test.

    It runs in a copy of this machine, with the paths and ports that a reader would use: the root
    file system is an overlay over ``folder``, which is empty, and the network has nothing but
    loopback. What it writes is gone at its end, and processes that it leaves are killed.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make a sandbox")
    # Every tool is looked for first: inside, a missing one would look like a wrong script.
    for tool in ("unshare", "ip", "setpriv"):
        find_tool(tool)
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    done = subprocess.run(
        [*unshare, "bash", "-c", _SETUP, "sandbox", str(folder), script],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PATH": SEARCH_PATH, "HOME": "/root", "LANG": "C.UTF-8"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def steps_of(name: str, heading: str) -> list[str]:
    return code_blocks(section(page(f"docs/guide/{name}"), heading), "sh")


def in_sandbox(steps: list[str], replaced: dict[str, str]) -> str:
    script = "".join(steps)
    for command, other in replaced.items():
        assert script.count(command) == 1, command
        script = script.replace(command, other)
    return script


@pytest.mark.timeout(300)
def test_guides_to_deploy_behind_nginx_and_to_upgrade_and_go_back_work(tmp_path: Path) -> None:
    tools = ("nginx", "prometheus", "promtool", "openssl", "curl", "systemd-sysusers")
    for tool in tools:
        find_tool(tool)
    show = "readlink /opt/tornado-idv\n"
    upgrade = [*steps_of("upgrading.md", "## On one machine"), show]
    back = [*steps_of("upgrading.md", "## Back to the old version"), show]
    steps, scraped = in_sandbox(steps_of("deploy.md", GUIDE), REPLACED).strip().rsplit("\n", 1)
    # Prometheus responds with 503 until it has started.
    until_scraped = (
        f"for _ in $(seq 40); do {scraped} > up || :; grep '\"1\"' up && break; sleep 0.5; done"
        f"\ngrep --quiet '\"1\"' up"
    )
    request = (
        'curl -sS --fail http://127.0.0.1:8080/api/v1/identify/url -d \'{"input": "@alice"}\''
        " -H 'Content-Type: application/json' -H \"Authorization: Bearer $(cat /root/shop.token)\""
    )
    exported, store = "/var/lib/tornado-idv/keys-1.0.jsonl", "--store /root/restored.db"
    restored = (
        f"tornado-idv keys import --create {store} {exported}\ntornado-idv keys list {store}\n"
    )
    script = [SYSTEMCTL, f"cd {ROOT}", steps, f"cd {tmp_path}", until_scraped]
    script += [f"cd {ROOT}", in_sandbox([*upgrade, *back], UPGRADE), request, restored]
    said = run_in_sandbox(tmp_path, "\n".join(script), timeout=280)
    assert said.count("The service is ready.") == 3
    assert re.findall("^tornado-idv-1.*", said, re.MULTILINE) == [
        "tornado-idv-1.1",
        "tornado-idv-1.0",
    ]
    assert said.count('"nickname":"@alice"') == 2
    assert re.search("^shop +valid", said, re.MULTILINE)
    assert not Path("/etc/tornado-idv").exists()


def test_image_serves_as_an_unprivileged_user_on_a_read_only_system(tmp_path: Path) -> None:
    """No Docker engine is needed: the user, the folder and the commands are the Dockerfile's."""
    find_tool("curl")
    text = page("deploy/docker/Dockerfile")
    last = dict(re.findall(r"^(\w+) (.*)", text.rpartition("\nFROM ")[2], re.MULTILINE))
    assert last["USER"] == "65532:65532"
    script = CONTAINER.format(
        venv=VENV,
        config=CONFIG,
        workdir=last["WORKDIR"],
        command=shlex.join(json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])),
        health=shlex.join(json.loads(last["HEALTHCHECK"].partition("CMD ")[2])),
    )
    said = run_in_sandbox(tmp_path, script)
    assert said.startswith("The service is ready.\n")
    assert '"nickname":"@alice"' in said
    assert said.endswith(" stopped with 0\n")
