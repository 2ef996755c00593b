"""Shared by all tests: the real servers (see `tests/servers.py`), and Hypothesis without its timing checks."""

from hypothesis import settings

pytest_plugins = ("tests.servers", "tests.guarded")

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
