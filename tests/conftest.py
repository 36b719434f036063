"""What more than one room of tests needs."""

from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("steady", deadline=None)  # a busy machine is no failure
settings.load_profile("steady")
