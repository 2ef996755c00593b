"""The operations that an administrator can ask of any broker: namespaces, moves, splits and merges.

Each operation checks what it can before it writes, publishes records in the role `admin`, and waits until the cluster
has done it. `writer.py` has what they share; the other modules have one kind of operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.channel.operations import bundles, namespaces, reshape
from loadmanager.channel.operations.writer import AdminWriter
from loadmanager.cluster.membership import Membership
from loadmanager.errors import Conflict, NotFound
from statechannel.law.bundle import Bundle, Key
from statechannel.law.namespace import Namespace
from statechannel.law.record import BrokerId
from statechannel.law.verdict import Ownership
from statechannel.runtime.service import Channel

__all__ = ["Operations"]


class Operations:
    """The administrator's operations on one broker."""

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        membership: Membership,
        clock_s: Callable[[], float],
        timeout_s: float,
        forbids: Callable[[Bundle, BrokerId], str] = lambda _bundle, _to: "",
    ) -> None:
        self._writer = AdminWriter(me, channel, timeout_s)
        self._membership = membership
        self._clock_s = clock_s
        self._forbids = forbids

    # --- looking

    def namespace(self, name: str) -> Namespace:
        """The existing namespace. Raises NotFound."""
        return self._writer.namespace(name)

    def bundle(self, bundle: Bundle) -> Ownership:
        """The entry of an existing bundle. Raises NotFound, with the ranges that there are."""
        return self._writer.bundle(bundle)

    def bundle_of(self, topic: Key) -> Ownership:
        """The entry of the bundle that a key falls into. Raises NotFound."""
        return self._writer.bundle_of(topic)

    # --- namespaces

    async def create_namespace(self, name: str, boundaries: Sequence[int]) -> None:
        """Create it with these boundaries. Raises Invalid, Conflict (it exists), Unavailable."""
        await namespaces.create(self._writer, name, boundaries)

    async def delete_namespace(self, name: str) -> None:
        """Unload all its bundles, then delete it. Raises NotFound, Conflict (in use all the time), Unavailable."""
        await namespaces.delete(self._writer, name)

    async def unload_namespace(self, name: str) -> None:
        """Unload every bundle. Raises NotFound, Conflict, Unavailable."""
        await namespaces.unload(self._writer, name)

    # --- moves

    async def unload(self, bundle: Bundle) -> None:
        """Take the bundle from its owner; the next lookup assigns it. Nothing to do if nobody owns it.

        Raises NotFound, Conflict, Unavailable.
        """
        await bundles.unload(self._writer, bundle)

    async def transfer(self, bundle: Bundle, destination: str, *, author: str = "admin", force: bool = False) -> None:
        """Move the bundle to a broker, by its name, and return when that one has it; an unowned one is assigned to it.

        `force` overrides a hard rule that forbids it; the record's reason then names the rule and the author. Raises
        NotFound (bundle, broker), Conflict (it is there already, a rule forbids it, the broker is draining or going
        away, the move was cancelled), Unavailable (not in time: the move may still happen).
        """
        await self._writer.sure(lambda: self._writer.bundle(bundle))
        to = bundles.destination(self._membership, self._clock_s, destination)
        reason = bundles.permission(bundle, to, self._forbids(bundle, to), author=author, force=force)
        await bundles.transfer(self._writer, bundle, to, reason)

    async def cancel(self, bundle: Bundle) -> None:
        """Call off the transfer or split that the bundle is in.

        Raises NotFound, Conflict (it is in none, or too far on its way), Unavailable.
        """
        await bundles.cancel(self._writer, bundle)

    # --- splits and merges

    async def split(
        self,
        bundle: Bundle,
        *,
        parts: int | None = None,
        positions: Sequence[int] | None = None,
        algorithm: str | None = None,
        unload: bool = False,
    ) -> tuple[Bundle, ...]:
        """Cut the bundle into `parts` (default 2), or at positions; returns the children, lowest first.

        The owner keeps them; with `unload` it then loses them, and lookups assign them anew. Raises Invalid, NotFound,
        Conflict (no owner, on its way, no cuts found, called off), Unavailable (not in time: it may still happen).
        """
        how = reshape.how_to_split(bundle, parts, positions, algorithm)
        children = await reshape.split(self._writer, bundle, how)
        if unload:
            try:
                await self._writer.each(children, self.unload)
            except (NotFound, Conflict) as error:
                raise Conflict(f"{bundle} was split, but its parts were not all unloaded: {error}") from None
        return children

    async def merge(self, parts: Sequence[Bundle]) -> Bundle:
        """Make one bundle of two or more neighbours of one owner, given in any order; returns it.

        Raises Invalid, NotFound, Conflict (no owner, different owners, on their way), Unavailable.
        """
        return await reshape.merge(self._writer, parts)
