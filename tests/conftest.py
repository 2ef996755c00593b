"""Shared by all tests: the real servers (see `tests/servers.py`), Hypothesis without its timing checks, no contexts."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

pytest_plugins = ("tests.servers", "tests.tiers")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="loadmanager-config-")
"""Empty: the contexts of whoever runs the tests name clusters of theirs. Programs in Go and browsers write there."""
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
