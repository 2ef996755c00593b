"""Shared by all tests: the real servers (see `tests/servers.py`), Hypothesis without its timing checks, no contexts."""

import os
from pathlib import Path

from hypothesis import settings

pytest_plugins = ("tests.servers", "tests.guarded")

os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no-such-folder")
"""The contexts of whoever runs the tests name clusters of theirs."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
