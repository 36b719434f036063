"""The environment of all tests: without what decides on this machine how programs behave.

`conftest` imports it before other modules, some of which read these variables when they are
imported. A test of such a variable sets it.
"""

import os
import re
import tempfile
import time

INHERITED = re.compile(
    # PYTHONPATH says where the code is, as PATH does.
    r"PYTHON(?!PATH$).*|TORNADO_IDV_.*|IDV_.*"
    r"|LANG|LANGUAGE|LC_.*|TERM|COLUMNS|LINES|NO_COLOR|(FORCE|CLI)_?COLOR.*|PAGER"
    r"|JOURNAL_STREAM|NOTIFY_SOCKET|LISTEN_.*|WATCHDOG_.*|INVOCATION_ID"
    r"|.*_proxy|XDG_.*|PG.*|REDIS.*|LDAP.*|GIT_(DIR|WORK_TREE|INDEX_FILE|CONFIG.*)"
    r"|PYTEST_ADDOPTS|MAKE.*|MFLAGS|SOURCE_DATE_EPOCH|ENV|BASH_ENV|CDPATH|POSIXLY_CORRECT"
    r"|NODE_OPTIONS",
    re.IGNORECASE,
)
"""Names of variables that are removed. Those that installing needs (PIP_*, SSL_CERT_*) stay."""

for each in filter(INHERITED.fullmatch, list(os.environ)):
    del os.environ[each]
for each in ("COLUMNS", "LINES"):  # which readline sets behind the back of `os.environ`
    os.unsetenv(each)
# Not UTC, which hides a local time in place of it; New Zealand's, without a database of zones.
os.environ["TZ"] = "NZST-12NZDT,M9.5.0,M4.1.0/3"
time.tzset()
os.umask(0o022)
# The path of a Unix socket has at most 107 bytes, of which pytest and the name of a test take 80.
# The files of nginx and haproxy, and scripts of documents, take no blank in a path.
if not re.fullmatch(r"[\w./-]{,24}", tempfile.gettempdir(), re.ASCII):
    os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
