"""What a service implements so that bundles can be given to it and taken away: `BundleHost`.

Each hook may be a plain function or a coroutine function. Coroutines run on the service's own event loop, plain
functions on worker threads: neither can hold up the control loop that proves ownership. A hook that does not return
within its time-out (settings `host_*_timeout_s`) counts as failed.

The order for one bundle is `prepare` (optional work ahead of a planned move) -> `acquire` -> `release` or `abandon`.
A split or merge is the same, within one broker: `release` of what is gone (to nobody), and when that has ended
`acquire` of what came, under a new token, from storage. Hooks of ranges that overlap are not called at the same time.
Between `acquire` returning and `release`/`abandon` being called, and only while `Broker.serving` says so, the service
may serve the bundle's keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


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
    """Optional: the busiest keys by full name, each with its message rate (in and out), hottest first. By them a single
    key that carries most of its bundle is found, and gets a bundle of its own."""

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


@runtime_checkable
class KnowsPositions(Protocol):
    """What a `BundleHost` may implement as well, so that a bundle can be split by the number of its keys."""

    def positions(self, bundle: Bundle) -> Iterable[int] | Awaitable[Iterable[int]]:
        """Where the keys of a bundle that is served here are on the ring: one position for each key, in any order, the
        CRC-32 of its full name (`Topic.position`). A sample does. Called once a split, while requests go on; what
        is returned is read where the hook runs, all within the time-out of `prepare`. Raising calls the split off."""
        ...


class KeyRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one key carries: messages and bytes per second, in and out together, and where it is on the ring."""

    position: int
    rate_msg_s: float = 0.0
    rate_bytes_s: float = 0.0


@runtime_checkable
class KnowsRates(Protocol):
    """What a `BundleHost` may implement as well, so that a bundle can be split by the load of its keys."""

    def rates(self, bundle: Bundle) -> Iterable[KeyRate] | Awaitable[Iterable[KeyRate]]:
        """What the keys of a bundle that is served here carry, in any order: `KeyRate`, or (position, messages/s,
        bytes/s). Keys at rest may be left out; of very many give the busiest. Called once a split, as `positions`, and
        asked first where a service has both. Raising calls the split off."""
        ...
