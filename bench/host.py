"""A service that does nothing but note, for `loadmanager broker --host bench.host:make`, when bundles come and go.

The lines (nanoseconds of CLOCK_MONOTONIC, `+` or `-`, bundle) go to the file that BENCH_SERVED names; all brokers of a
bench append to the same one. `release` begins within a loop iteration of the end of service, `acquire` ends within one
of its beginning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from loadmanager.model.host import BundleLoad, Destination
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


class Noting:
    """See the module."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """It is here."""
        self._note("+", bundle)

    async def release(self, bundle: Bundle, to: Destination | None) -> None:
        """It goes."""
        self._note("-", bundle)

    async def abandon(self, bundle: Bundle) -> None:
        """Nothing to stop."""

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        """Nothing costs anything."""
        return {}

    def _note(self, sign: str, bundle: Bundle) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {sign} {bundle}\n".encode())


def make() -> Noting:
    """The factory."""
    return Noting(os.environ["BENCH_SERVED"])
