"""``python -m tornado_idv``: the ``tornado-idv`` command, where it is not on the path."""

from tornado_idv.cli import main

main(prog_name="tornado-idv")
