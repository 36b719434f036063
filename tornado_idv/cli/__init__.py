"""The ``tornado-idv`` command, with one module for each command group."""

import os
import signal
import sys

# The first process of a container has no default action for signals: without a handler, they are
# lost. The handlers are set here because the imports below take most of the start. They exit
# immediately, because the service has no requests to finish.
if os.path.basename(sys.argv[0]) in ("tornado-idv", "__main__.py") and "serve" in sys.argv[1:2]:  # noqa: PTH119 - pathlib takes 5 ms
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(0))
if hasattr(signal, "pthread_sigmask"):  # missing on Windows
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by the container image

import click

from tornado_idv.cli.commands import Commands

# Plugins of pydantic would see secrets of the configuration, and the search for them takes 7 ms
# (CPython 3.11). It happens with the first import of a model, after this line.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_EPILOG = """\b
Examples:
  tornado-idv init my-directory
  tornado-idv serve --config my-directory/config.yaml
  tornado-idv COMMAND --help

\b
Completion, for bash (zsh and fish: write that name instead of bash):
  eval "$(_TORNADO_IDV_COMPLETE=bash_source tornado-idv)\""""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(package_name="tornado-idv", message="%(prog)s %(version)s")
def main() -> None:
    """Does this user exist, and who is it? A lookup service over HTTP and JSON.

    Begin with `tornado-idv init`, then `tornado-idv serve`.

    Exit codes: 0 done; 1 the answer is no (not found, check failed); 2 wrong use;
    3 could not be determined; 130 interrupted by Ctrl-C. For serve, see `serve --help`.
    """
