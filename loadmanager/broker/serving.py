"""Answers "may I serve this?", cheaply enough to ask for each request, and safely from any thread.

A policy may make a namespace not exclusive: then only the table or the coordination service ends serving, not expired
proofs. A broker that is cut off from both goes on serving, beside the new owner.

Only the control loop writes. A reader costs two dictionary look-ups and one clock: no lock, no waiting.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import Token
from statechannel.law.table import OwnershipTable
from statechannel.runtime.proofs import Proofs


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A bundle that we may serve at this moment, and the fencing token to give to the storage."""

    bundle: Bundle
    token: Token

    def __contains__(self, key: int | str | Key) -> bool:
        """Whether the key is in the bundle. Raises InvalidName."""
        return key in self.bundle


class Serving:
    """What this broker may serve: acquired by the host, held according to the table, and covered by a fresh proof."""

    def __init__(self, table: OwnershipTable, proofs: Proofs, clock_s: Callable[[], float]) -> None:
        self._table = table
        self._proofs = proofs
        self._clock_s = clock_s
        self._claims: dict[Bundle, Claim] = {}
        self._shared: frozenset[str] = frozenset()
        self._listeners: list[Callable[[Bundle, Claim | None], None]] = []

    def serving(self, bundle: Bundle) -> bool:
        """Whether this broker may serve the bundle at this moment."""
        return self.claim(bundle) is not None

    def claim(self, bundle: Bundle) -> Claim | None:
        """The token under which this broker may serve the bundle at this moment, None if it may not."""
        proofs, claim = self._proofs, self._claims.get(bundle)
        if claim is None:
            return None
        until_s = proofs.until_s[claim.token.partition]
        # The order matters if this thread is paused between two of these steps: a proof that came after the claim had
        # ended, or with the next incarnation, must not revive it. So all three were true when the clock was read.
        expired = self._clock_s() >= until_s
        if self._claims.get(bundle) is not claim or (expired and bundle.namespace not in self._shared):
            return None
        return claim

    def stands(self, claim: Claim) -> bool:
        """Whether the claim has not ended, even if the proof is too old to serve under it now."""
        return self._claims.get(claim.bundle) == claim

    def exclusive(self, namespace: str) -> bool:
        """Returns True if at most one broker serves a bundle of the namespace; False trades that for availability."""
        return namespace not in self._shared

    @property
    def shared(self) -> frozenset[str]:
        """The namespaces that are not exclusive."""
        return self._shared

    def claim_topic(self, topic: Key) -> Claim | None:
        """As `claim`, for the bundle that the key falls into."""
        namespace = self._table.namespace(topic.namespace)
        if namespace is None or not namespace.exists:
            return None
        return self.claim(namespace.bundle_at(topic.position))

    def claims(self) -> list[Claim]:
        """All bundles that the host has acquired and the table says are ours, whether or not a proof is fresh."""
        return list(self._claims.values())

    def until_s(self) -> list[float]:
        """Per partition of the channel the time until which its claims may be served."""
        return list(self._proofs.until_s)

    def listen(self, listener: Callable[[Bundle, Claim | None], None]) -> None:
        """Call `listener(bundle, claim)` on the control loop when serving a bundle begins, or ends (claim is None).

        It is not called when proofs expire or become fresh again.
        """
        self._listeners.append(listener)

    def share(self, namespaces: frozenset[str]) -> None:
        """These namespaces, and no others, are not exclusive from now on."""
        self._shared = namespaces

    # --- for the agent

    def adopt(self, proofs: Proofs) -> None:
        """Start a new incarnation: nothing is served yet, and only its own proofs count."""
        self.end_all()
        self._proofs = proofs

    def begin(self, bundle: Bundle, token: Token) -> None:
        """Serve from now on."""
        claim = self._claims[bundle] = Claim(bundle, token)
        for listener in self._listeners:
            listener(bundle, claim)

    def end(self, bundle: Bundle) -> None:
        """Stop serving. Idempotent."""
        if self._claims.pop(bundle, None) is not None:
            for listener in self._listeners:
                listener(bundle, None)

    def end_all(self) -> None:
        """Serve nothing."""
        ended = list(self._claims)
        self._claims.clear()
        for bundle in ended:
            for listener in self._listeners:
                listener(bundle, None)
