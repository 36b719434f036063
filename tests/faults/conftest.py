"""What the tests of faults share."""

import pytest

pytest.register_assert_rewrite("support.faults.client")
