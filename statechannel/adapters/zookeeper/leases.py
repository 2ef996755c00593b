"""Leases on ZooKeeper: who may take one, and who may give it up.

A lease is an ephemeral node. Its *term* is a second node, whose version rises with every claim. A new ephemeral node
always has version 0, so only the term tells a holder's node from its successor's.
"""

from __future__ import annotations

from contextlib import suppress

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat

from statechannel.adapters.zookeeper.checks import ATTEMPTS, Checks, fenced
from statechannel.adapters.zookeeper.nodes import Nodes, decode_holder, encode_holder
from statechannel.adapters.zookeeper.session import Refused, Session, check, drop, make, put
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId


class Leases:
    """The leases below one root, over one link."""

    def __init__(self, session: Session, nodes: Nodes, checks: Checks) -> None:
        self._session = session
        self._nodes = nodes
        self._checks = checks

    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        """As `Coordination.claim`."""
        node, term = self._nodes.lease(lease), self._nodes.term(lease)
        for _ in range(ATTEMPTS):
            self._checks.may_act(candidate)
            count = await self._checks.version(term)
            present = await self._read(node)
            if present is not None:
                data, stat = present
                ours = decode_holder(lease, data) == candidate
                if not ours or stat.ephemeralOwner == self._session.session_id:
                    await self._checks.confirm_current(candidate)
                    return ours
            # a node of ours from an earlier session: it would vanish with that session
            outlived = () if present is None else (drop(node),)
            try:
                await self._session.commit(
                    self._checks.is_current(candidate),
                    put(term, b"", count),
                    *outlived,
                    make(node, encode_holder(candidate), ephemeral=True),
                )
            except Refused as refused:
                if refused.index == 0:
                    raise fenced(candidate) from None
                continue
            return True
        return False

    async def vacate(self, lease: str, holder: BrokerId) -> None:
        """As `Coordination.vacate`."""
        node, term = self._nodes.lease(lease), self._nodes.term(lease)
        for _ in range(ATTEMPTS):
            counted = await self._session.stat(term)
            present = await self._read(node)
            if counted is None or present is None or decode_holder(lease, present[0]) != holder:
                return
            with suppress(Refused):
                await self._session.commit(check(term, counted.version), drop(node))
                return
        raise CoordinationUnavailable(f"lost {ATTEMPTS} races for lease {lease} of {holder}: try again")

    async def _read(self, node: str) -> tuple[bytes, ZnodeStat] | None:
        with suppress(NoNodeError):
            return await self._session.read(node)
        return None
