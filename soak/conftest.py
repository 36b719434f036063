"""These tests use the environment of `tests/`."""

import environment  # noqa: F401
import pytest

pytest.register_assert_rewrite("support.faults.client")
