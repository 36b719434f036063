"""Runs the command ``tornado-idv`` as ``python -m tornado_idv``."""

from tornado_idv.cli import main

main(prog_name="tornado-idv")
