"""The tutorials, the checklist, the comparison: every command runs, with the output of the page."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from docs_tutorial import walk

from support.pages import ROOT, page
from support.processes.proxies import find_tool, running_program

pytestmark = [pytest.mark.slow, pytest.mark.ci]

COMPARISON = page("docs/explanation/comparison.md")

CHECKLIST = page("docs/guide/checklist.md")
SAFE_SET_UP = """\
```sh
umask 077
cat > config.yaml <<'END'
profile_sites: [https://profiles.example]
server: {port: 8080}
admin: {port: 8081}
auth: {store: keys.db}
backends:
  - name: users
    kind: sqlite
    path: users.db
    canary: {nickname: "@idv-canary", card_number: "9000000000000001"}
END
printf '%s,%s,Free\n' nickname card_number alice 4001 bob 4002 idv-canary 9000000000000001 |
  sed '1s/Free/plan/' > users.csv
tornado-idv users import users.csv --to users && chmod 600 users.db
tornado-idv keys issue shop --owner 'web shop' --scope identify:url --create > key
tornado-idv serve
```
"""


def tutorial(name: str) -> str:
    return page(f"docs/tutorial/{name}.md")


def test_first_ten_minutes(tmp_path: Path) -> None:
    """`make run` is replaced by what it starts; its service is stopped before the next one."""
    with walk(tutorial("first-ten-minutes"), tmp_path) as page:
        _, make, after = page.text.partition("```sh\nmake run\n```\n")
        assert make
        demo = (ROOT / "config.yaml").read_text(encoding="utf-8")
        for port, free in page.ports.items():
            demo = demo.replace(f"port: {port}", f"port: {free}")
        (tmp_path / "demo.yaml").write_text(demo.replace("deploy/", f"{ROOT}/deploy/"))
        page.text, rest = after.split("In a browser, ", 1)
        page.start("tornado-idv serve --config ~/demo.yaml")
        page.follow()
        page.commands.stop("serve", "--config", f"{tmp_path}/demo.yaml", "")
        page.text = rest
        page.follow()
        assert page.commands.stop("serve", "") == 0


def test_your_users(tmp_path: Path) -> None:
    with walk(tutorial("your-users"), tmp_path) as page:
        page.text, _, _ = page.text.partition("## A table that you have")
        page.follow()


def test_caching_proxy(tmp_path: Path) -> None:
    with walk(tutorial("caching-proxy"), tmp_path) as page:
        page.follow()


def test_checklist_holds_for_a_safe_set_up(tmp_path: Path) -> None:
    """A Prometheus server with the files of deploy/ scrapes it each second."""
    prometheus, files = find_tool("prometheus"), ROOT / "deploy" / "prometheus"
    folder = tmp_path / "service"
    folder.mkdir(mode=0o700)
    shutil.copy(ROOT / "examples" / "callers" / "safe.py", folder / "my_sync.py")
    (folder / "my_sync.py").chmod(0o600)
    with walk(SAFE_SET_UP + CHECKLIST, tmp_path, str(Path(sys.executable).parent)) as page:
        shutil.copy(files / "rules.yml", tmp_path)
        config = (files / "prometheus.yml").read_text(encoding="utf-8")
        config = config.replace(":8081", f":{page.ports['8081']}").replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(config, encoding="utf-8")
        command = [
            prometheus,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{page.ports['9090']}",
        ]
        with running_program(command, page.ports["9090"], tmp_path / "prometheus.log"):
            page.shell.run("cd service")
            page.follow()


def test_comparison(tmp_path: Path) -> None:
    programs = str(Path(find_tool("nginx", Path("/usr/sbin"))).parent)
    section = COMPARISON.partition("\n## nginx proxy_cache\n")[2]
    with walk(section, tmp_path, programs) as page:
        page.follow()
