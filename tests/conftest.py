"""Shared by all tests: the real servers (see `tests/servers.py`), Hypothesis without its timing checks, no contexts,
bytecode that is kept.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile

from hypothesis import settings

pytest_plugins = ("tests.servers", "tests.tiers")

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="loadmanager-config-")
"""Empty: the contexts of whoever runs the tests name clusters of theirs. Programs in Go and browsers write there."""
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Bytecode is kept: else each process that a test starts compiles all that it imports, half of a broker's start."""

os.environ["PYTHONFAULTHANDLER"] = "1"
"""Workers and every Python process that a test starts write their stacks when native code ends them."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell without job control has its background jobs ignore SIGINT, and so would every process of a test."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
