"""What a service implements so that bundles can be given to it and taken away: `BundleHost`.

Each hook may be a plain function or a coroutine function. Coroutines run on the service's own event loop, plain
functions on worker threads: neither can hold up the control loop that proves ownership. A hook that does not return
within its time-out (settings `host_*_timeout_s`) counts as failed.

The order for one bundle is `prepare` (optional work ahead of a planned move) -> `acquire` -> `release` or `abandon`.
Between `acquire` returning and `release`/`abandon` being called, and only while `Broker.serving` says so, the service
may serve the bundle's keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec

from statechannel.bundle import Bundle
from statechannel.record import Token


class Destination(msgspec.Struct, frozen=True):
    """Where a bundle goes: the next owner's advertised name and the URLs that it registered (by protocol)."""

    broker: str
    urls: Mapping[str, str]


class BundleLoad(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one bundle costs, measured by the service. Rates are per second over the service's own last window."""

    keys: int = 0
    sessions: int = 0
    in_rate_msg_s: float = 0.0
    out_rate_msg_s: float = 0.0
    in_rate_bytes_s: float = 0.0
    out_rate_bytes_s: float = 0.0
    cpu_percent: float = 0.0
    """Share of one core, 100 = one whole core."""
    hottest_keys: tuple[tuple[str, float], ...] = ()
    """Optional: the busiest keys with their message rate, hottest first."""

    @property
    def throughput_bytes_s(self) -> float:
        return self.in_rate_bytes_s + self.out_rate_bytes_s

    @property
    def rate_msg_s(self) -> float:
        return self.in_rate_msg_s + self.out_rate_msg_s


class BundleHost(Protocol):
    """A sharded service as the load manager sees it. Each hook may be sync or async; all may be called concurrently
    for different bundles, never concurrently for the same one (except `abandon`, which may overtake a hook that hangs).
    """

    def prepare(self, bundle: Bundle) -> Awaitable[None] | None:
        """Warm up for a bundle that is about to come; the present owner serves on. Raising cancels the move."""
        ...

    def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> Awaitable[None] | None:
        """Take the bundle over. Raise `token` in the bundle's storage before loading from it; then be ready to serve.

        `hand_off` is what the previous owner's `release` returned, None if there was none. Raising declines the bundle.
        """
        ...

    def release(self, bundle: Bundle, to: Destination | None) -> Awaitable[bytes | None] | bytes | None:
        """Stop serving: let requests in progress end, send open connections to `to` if it is known, and return a
        hand-off of at most 64 KiB for the next owner, or None."""
        ...

    def abandon(self, bundle: Bundle) -> Awaitable[None] | None:
        """The bundle is not ours any more, without a hand-over: stop at once, write nothing for it."""
        ...

    def load(self) -> Mapping[Bundle, BundleLoad] | Awaitable[Mapping[Bundle, BundleLoad]]:
        """The load of every bundle that is held, called once per sampling interval."""
        ...
