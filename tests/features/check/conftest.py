"""A folder to use the command line in, two tiny kinds of backend, and files to load."""

from support.fixtures.commands import config, folder, source, users  # noqa: F401
from support.fixtures.configs import kinds, load_text, problems_in  # noqa: F401
