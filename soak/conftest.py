"""The environment of these tests is that of `tests/`."""

import environment  # noqa: F401
import pytest

pytest.register_assert_rewrite("support.faults.client")
