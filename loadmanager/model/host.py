"""The hooks that a service implements to get bundles: `BundleHost`.

Each hook may be a plain function or a coroutine function. Coroutines run on the service's own event loop, plain
functions on worker threads: neither can block the control loop that proves ownership. A hook that exceeds its time-out
(settings `host_*_timeout_s`) counts as failed.

The order for one bundle is `prepare` (optional work ahead of a planned move) -> `acquire` -> `release` or `abandon`. A
split or merge does the same within one broker: `release` of the old bundles (without a destination), and when that has
ended `acquire` of the new ones, under a new token, from storage. Hooks of overlapping ranges never run at once.
Between the return of `acquire` and the call of `release`/`abandon`, and only while `Broker.serving` says so, the
service may serve the bundle's keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


class Destination(msgspec.Struct, frozen=True):
    """The next owner: its advertised name and its registered URLs, by protocol."""

    broker: str
    urls: Mapping[str, str]


class BundleLoad(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The load of one bundle, measured by the service. Rates are per second over the service's own last window."""

    keys: int = 0
    sessions: int = 0
    in_rate_msg_s: float = 0.0
    out_rate_msg_s: float = 0.0
    in_rate_bytes_s: float = 0.0
    out_rate_bytes_s: float = 0.0
    cpu_percent: float = 0.0
    """Share of one core, 100 = one whole core."""
    hottest_keys: tuple[tuple[str, float], ...] = ()
    """Optional: the busiest keys by full name, each with its message rate (in and out), hottest first.

    They show a single key that carries most of its bundle, which then gets a bundle of its own.
    """

    @property
    def throughput_bytes_s(self) -> float:
        return self.in_rate_bytes_s + self.out_rate_bytes_s

    @property
    def rate_msg_s(self) -> float:
        return self.in_rate_msg_s + self.out_rate_msg_s


class BundleHost(Protocol):
    """A sharded service as the load manager sees it; each hook may be sync or async.

    Hooks may be called concurrently for different bundles, never for the same one (except `abandon`, which may overtake
    a hook that hangs).
    """

    def prepare(self, bundle: Bundle) -> Awaitable[None] | None:
        """Warm up for a bundle that will come; the present owner still serves it. Raising cancels the move."""
        ...

    def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> Awaitable[None] | None:
        """Take the bundle over: raise `token` in its storage, then load from it; on return be ready to serve.

        `hand_off` is what the previous owner's `release` returned, or None. Raising declines the bundle.
        """
        ...

    def release(self, bundle: Bundle, to: Destination | None) -> Awaitable[bytes | None] | bytes | None:
        """Stop serving: finish requests in progress, and send open connections to `to` if it is known.

        Return a hand-off of at most 64 KiB for the next owner, or None.
        """
        ...

    def abandon(self, bundle: Bundle) -> Awaitable[None] | None:
        """This broker no longer owns the bundle, and there is no hand-off: stop at once, write nothing for it."""
        ...

    def load(self) -> Mapping[Bundle, BundleLoad] | Awaitable[Mapping[Bundle, BundleLoad]]:
        """The load of every bundle of this broker; called once per sampling interval."""
        ...


@runtime_checkable
class AnsweredAtEndpoint(Protocol):
    """Optional for a `BundleHost` for which the broker's own endpoint answers."""

    @property
    def admin_protocols(self) -> Sequence[str]:
        """The protocols under which clients find the broker's admin URL, such as `groups` for consumer groups."""
        ...


@runtime_checkable
class KnowsPositions(Protocol):
    """Optional for a `BundleHost`: its bundles can then be split by the number of keys."""

    def positions(self, bundle: Bundle) -> Iterable[int] | Awaitable[Iterable[int]]:
        """The positions of the bundle's keys on the ring: CRC-32 of each full name (`Topic.position`), in any order.

        A sample is enough. Called once per split while requests go on; the result is also iterated where the hook runs,
        all within the time-out of `prepare`. Raising cancels the split.
        """
        ...


class KeyRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The load of one key: its position on the ring, messages and bytes per second, in and out together."""

    position: int
    rate_msg_s: float = 0.0
    rate_bytes_s: float = 0.0


@runtime_checkable
class KnowsRates(Protocol):
    """Optional for a `BundleHost`: its bundles can then be split by the load of their keys."""

    def rates(self, bundle: Bundle) -> Iterable[KeyRate] | Awaitable[Iterable[KeyRate]]:
        """The load of the bundle's keys, in any order: `KeyRate`, or (position, messages/s, bytes/s).

        Idle keys may be omitted; of very many keys give the busiest. Called once per split, as `positions`, and
        preferred to it if a service has both. Raising cancels the split.
        """
        ...


@runtime_checkable
class ServesElsewhere(Protocol):
    """Optional for a `BundleHost` whose service is another process, which serves by what it was last told.

    `Broker.serving` ends at once; that process learns of it later, or never. So a broker gives a bundle up (the record
    `release`) only when this host says that the other process has stopped.
    """

    async def vacated(self, bundle: Bundle) -> None:
        """Return when the service cannot serve the bundle any more, even if it has heard nothing.

        Called before each `release` record, within the time-out of `release`, and again until it returns.
        """
        ...
