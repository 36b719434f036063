"""The environment of these tests, which is the same as in `tests/`."""

import environment  # noqa: F401
