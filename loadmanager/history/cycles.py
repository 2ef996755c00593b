"""Python's search for cycles, put off. A decoder makes some hundred thousand small objects at once, none of which is in
a cycle, and each search walks over all of them: it took as long as the decoding."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Generator[None]:
    """For the work of a task: what is dropped is freed all the same, by its reference count."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
