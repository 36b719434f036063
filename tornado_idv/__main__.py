"""``python -m tornado_idv``: the ``tornado-idv`` command for a shell without it on its path."""

from tornado_idv.cli import main

main(prog_name="tornado-idv")
