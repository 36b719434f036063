"""An error of a worker's start is the same in the supervisor."""

from __future__ import annotations

import pytest

from tornado_idv.errors import ConfigError, Problem, SettingError, StartError
from tornado_idv.workers.control import Decoder, encode
from tornado_idv.workers.start_error import from_record, to_record


@pytest.mark.parametrize(
    "error",
    [
        StartError("cannot open members.db"),
        SettingError("the key store has it, too", "auth", "keys", 1, "id"),
        ConfigError(Problem("users.yaml", 3, 1, "users", "wrong"), Problem("x", 1, 2, "", "bad")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_keeps_its_type_text_and_data(error: StartError) -> None:
    (record,) = Decoder().feed(encode(to_record(error)))
    received = from_record(record)
    assert (type(received), str(received)) == (type(error), str(error))
    assert vars(received) == vars(error)
