"""Python tracebacks for a process that native code ends. Programs call this in their first line; libraries do not."""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress

STDERR = 2


def write_tracebacks() -> None:
    """Write the stacks of all threads to standard error on SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL.

    Does nothing where that is set up already, or standard error is closed. librdkafka blocks signals on its own
    threads: what crashes there ends the process without a traceback, unless by SIGABRT.
    """
    if not faulthandler.is_enabled():
        with suppress(OSError):
            os.fstat(STDERR)
            faulthandler.enable(STDERR)  # by number: `sys.stderr` may be replaced by an object without a descriptor
