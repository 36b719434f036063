"""What more than one room of tests needs."""

pytest_plugins = ["pytester"]
