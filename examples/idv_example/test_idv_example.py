import csv

import pytest

from idv_example import CsvBackend
from tornado_idv.kit.testing import BackendConformance, make_backend


class TestCsv(BackendConformance):
    users = [user for user in BackendConformance.users if user.profile_url is None]

    @pytest.fixture
    def make_backend(self, tmp_path):
        def make(users):
            with (tmp_path / "users.csv").open("w", newline="", encoding="utf-8-sig") as file:
                writer = csv.writer(file)
                writer.writerow(["nickname", "card_number", "plan"])
                writer.writerows([user.nickname, user.card_number, user.plan] for user in users)
            return make_backend(CsvBackend, tmp_path, path="users.csv")

        return make

    @pytest.fixture
    def truncated_backend(self, make_backend, tmp_path):
        backend = make_backend(self.users)
        text = (tmp_path / "users.csv").read_bytes()
        (tmp_path / "users.csv").write_bytes(text[: len(text) * 3 // 4])
        return backend

    @pytest.fixture
    def failing_backend(self, tmp_path):
        return make_backend(CsvBackend, tmp_path, path="missing.csv")
