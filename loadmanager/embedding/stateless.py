"""The `BundleHost` of a service without state: it only needs requests to be admitted.

A move waits for requests in progress; the load of a bundle is the rate of its admitted requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmanager.model.host import BundleLoad, Destination
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token

if TYPE_CHECKING:
    from loadmanager.embedding.control import Control


class StatelessHost:
    """The default host of a `Broker`. Its hooks are plain functions, which run on worker threads."""

    control: Control
    """Set before the broker starts."""

    def __init__(self) -> None:
        self._held: set[Bundle] = set()
        self._sampled: tuple[float, Mapping[Bundle, int]] = (time.monotonic(), {})

    def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:  # noqa: ARG002 - the protocol's
        """Nothing to load."""
        self._held.add(bundle)

    def release(self, bundle: Bundle, to: Destination | None) -> None:  # noqa: ARG002
        """Wait for requests in progress."""
        self._held.discard(bundle)
        self.control.gate.quiesce_blocking(bundle, self.control.quiesce_timeout_s)

    def abandon(self, bundle: Bundle) -> None:
        """Nothing to drop."""
        self._held.discard(bundle)

    def load(self) -> Mapping[Bundle, BundleLoad]:
        """The rate of admitted requests since the last call."""
        before_s, before = self._sampled
        now_s, now = self._sampled = time.monotonic(), self.control.gate.admitted()
        window_s = max(now_s - before_s, 1e-3)
        rates = {bundle: max(0, now.get(bundle, 0) - before.get(bundle, 0)) / window_s for bundle in list(self._held)}
        return {bundle: BundleLoad(in_rate_msg_s=rate, out_rate_msg_s=rate) for bundle, rate in rates.items()}
