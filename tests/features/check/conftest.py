"""Two tiny kinds of backend, and files to load."""

from support.fixtures.configs import kinds, load_text, problems_in  # noqa: F401
