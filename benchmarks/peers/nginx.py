"""nginx returning one constant response: an upper bound, written in C."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.contract import PORT, USERS

_CONFIG = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        default_type application/json;
        location / {{ return 200 '{body}'; }}
    }}
}}
"""


def main() -> None:
    """Replace this process by nginx. Its folder is inside the folder of the contract file."""
    folder = tempfile.mkdtemp(dir=Path(sys.argv[2]).parent)
    body = json.dumps(next(iter(USERS.values())), separators=(",", ":"))
    config = Path(folder, "nginx.conf")
    config.write_text(_CONFIG.format(folder=folder, port=PORT, body=body), encoding="utf-8")
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
    os.execv(nginx, [nginx, "-p", folder, "-c", str(config), "-e", "stderr"])


if __name__ == "__main__":
    main()
