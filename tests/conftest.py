"""Shared by all tests: the real servers (see `tests/servers.py`)."""

pytest_plugins = ("tests.servers",)
