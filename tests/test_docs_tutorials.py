"""The tutorials, the checklist, the comparison: every command runs, with the output of the page."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from docs_tutorial import walk

from support.pages import ROOT, page
from support.processes.proxies import find_tool, running_program

pytestmark = [pytest.mark.slow, pytest.mark.ci]

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


def test_first_ten_minutes(tmp_path: Path) -> None:
    """`make run` is replaced by what it starts; its service is stopped before the next one."""
    with walk(page("docs/tutorial/first-ten-minutes.md"), tmp_path) as followed:
        _, make, after = followed.text.partition("```sh\nmake run\n```\n")
        assert make
        demo = (ROOT / "config.yaml").read_text(encoding="utf-8")
        for port, free in followed.ports.items():
            demo = demo.replace(f"port: {port}", f"port: {free}")
        (tmp_path / "demo.yaml").write_text(demo.replace("deploy/", f"{ROOT}/deploy/"))
        followed.text, rest = after.split("In a browser, ", 1)
        followed.start("tornado-idv serve --config ~/demo.yaml")
        followed.follow()
        followed.commands.stop("serve", "--config", f"{tmp_path}/demo.yaml", "")
        followed.text = rest
        followed.follow()
        assert followed.commands.stop("serve", "") == 0


def test_checklist_holds_for_a_safe_set_up(tmp_path: Path) -> None:
    """A Prometheus server with the files of deploy/ scrapes it each second."""
    prometheus, files = find_tool("prometheus"), ROOT / "deploy" / "prometheus"
    folder = tmp_path / "service"
    folder.mkdir(mode=0o700)
    shutil.copy(ROOT / "examples" / "callers" / "safe.py", folder / "my_sync.py")
    (folder / "my_sync.py").chmod(0o600)
    with walk(
        SAFE_SET_UP + page("docs/guide/checklist.md"), tmp_path, str(Path(sys.executable).parent)
    ) as followed:
        shutil.copy(files / "rules.yml", tmp_path)
        config = (files / "prometheus.yml").read_text(encoding="utf-8")
        config = config.replace(":8081", f":{followed.ports['8081']}").replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(config, encoding="utf-8")
        command = [
            prometheus,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{followed.ports['9090']}",
        ]
        with running_program(command, followed.ports["9090"], tmp_path / "prometheus.log"):
            followed.shell.run("cd service")
            followed.follow()


@pytest.mark.parametrize(
    ("path", "part", "tool"),
    [
        ("tutorial/your-users", ".*(?=## A table that you have)", "sh"),
        ("tutorial/caching-proxy", ".*", "sh"),
        ("explanation/comparison", "## nginx proxy_cache.*", "nginx"),
    ],
)
def test_page_can_be_followed(path: str, part: str, tool: str, tmp_path: Path) -> None:
    text = re.search(part, page(f"docs/{path}.md"), re.DOTALL)
    assert text is not None
    with walk(text[0], tmp_path, str(Path(find_tool(tool)).parent)) as followed:
        followed.follow()
