"""Decides what a broker must do for each bundle that names it, from the ownership table and the state of its host.

Level-triggered: `reconcile(bundle, entry)` compares the table's entry with the host's state and returns the effects
that close the gap; it remembers nothing else. It is called after every accepted change, after every hook that ended,
and at the start for every bundle that names us, also those in flight. Pure.

| table says                    | host's state       | effects                                              |
|-------------------------------|--------------------|------------------------------------------------------|
| Assigning(me)                 | nothing, prepared  | acquire; then serve and publish `return`             |
| Transferring(A→me)            | nothing            | prepare; then publish `ready` (failed: `cancel`)     |
| Releasing(me→to)              | serving            | stop serving, release; then publish `release`        |
| Revoking(me)                  | anything           | stop serving, abandon; publish `release`             |
| Assigned(me) (after a create) | nothing            | acquire, serve                                       |
| Splitting(me)                 | serving            | find the cuts; publish `create` (none: `cancel`)     |
| gone, all in its place ours;  | acquiring, serving | stop serving, release without a destination          |
| ours under a newer token      |                    |                                                      |
| anything else                 | anything           | stop serving, abandon                                |
| (our proofs have run out)     | serving            | stop serving, abandon; acquire again when they are fresh |

A split or merge keeps the owner. But the host must flush the old bundle under its old token before the new bundles
raise the fence to theirs, or the store would refuse the flush. So while a bundle that is *gone* from the table is being
released, bundles that overlap it wait: they are neither acquired nor handed on. The end of the release reconciles
them. Bundles that are gone are reconciled before new ones (`in_order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from loadmanager.cluster.fitness import DECLINED, UNPREPARED
from loadmanager.model.boundaries import FEWEST_PARTS, NoCuts, evenly
from loadmanager.model.host import KeyRate
from loadmanager.settings.choices import BY_KEYS, Algorithm
from loadmanager.strategies.splitting.cuts import UNBOUNDED, Bounds, cuts_of
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Ownership, Transition


def in_order(transitions: Iterable[Transition]) -> list[Transition]:
    """The transitions, bundles that are gone first: bundles that overlap them must wait."""
    return sorted(transitions, key=lambda transition: transition.after is not None)


_WITHDRAWAL = {
    State.ASSIGNING: Action.RELEASE,
    State.ASSIGNED: Action.UNLOAD,
    State.SPLITTING: Action.CANCEL,
}
"""How to give back a bundle that the host declined; a split is called off first."""


class AgentCore:
    """The agent's decisions for one incarnation."""

    def __init__(self, me: BrokerId) -> None:
        self.me = me
        self._hosted: dict[Bundle, Hosted] = {}
        self._leaving: dict[str, set[Bundle]] = {}
        """By namespace, bundles that are gone from the table and still being released: overlapping ones wait."""

    def hosted(self) -> dict[Bundle, Hosted]:
        """The host's state, by bundle."""
        return dict(self._hosted)

    def reconcile(self, bundle: Bundle, entry: Ownership | None, instead: Iterable[Ownership] = ()) -> list[Effect]:
        """The effects for a bundle with this table entry; without an entry, `instead` are those in its place."""
        at_host = self._hosted.get(bundle)
        if entry is None:
            return self._as_gone(bundle, at_host, tuple(instead))
        if entry.holder == self.me:
            return self._as_holder(bundle, entry, at_host)
        if entry.target == self.me:
            return self._as_target(bundle, entry, at_host)
        return self._drop(bundle, at_host)

    def _as_gone(self, bundle: Bundle, at_host: Hosted | None, instead: tuple[Ownership, ...]) -> list[Effect]:
        if bundle in self._leaving.get(bundle.namespace, ()):
            return []
        if at_host is not None and at_host.stand in (Stand.ACQUIRING, Stand.SERVING) and self._still_ours(instead):
            self._leaving.setdefault(bundle.namespace, set()).add(bundle)
            self._hosted[bundle] = Hosted(Stand.RELEASING, at_host.token)
            return [Stop(bundle), Release(bundle, at_host.token, None)]
        return self._drop(bundle, at_host)

    def _still_ours(self, instead: tuple[Ownership, ...]) -> bool:
        return bool(instead) and all(e.holder == self.me and e.state is not State.REVOKING for e in instead)

    def _must_wait(self, bundle: Bundle) -> bool:
        """Whether a bundle that is gone and overlaps this one is still being released."""
        leaving = self._leaving.get(bundle.namespace, ())
        return any(other.lo < bundle.hi and bundle.lo < other.hi for other in leaving)

    def _as_holder(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
        match entry.state:
            case State.ASSIGNING | State.ASSIGNED | State.TRANSFERRING | State.SPLITTING:
                return self._take(bundle, entry, at_host)
            case State.RELEASING:
                return self._give(bundle, entry, at_host)
            case State.REVOKING:
                release = Publish(bundle, Action.RELEASE, entry.revision, reason="stopped: revoked")
                return [*self._drop(bundle, at_host), release]
            case State.UNASSIGNED:
                return self._drop(bundle, at_host)

    def _take(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
        if at_host is None or at_host.token != entry.token or at_host.stand in (Stand.RELEASING, Stand.RELEASED):
            return self._begin(bundle, entry, at_host)
        match at_host.stand, entry.state:
            case Stand.SERVING, State.ASSIGNING:
                return [Publish(bundle, Action.RETURN, entry.revision)]
            case Stand.SERVING, State.SPLITTING:
                return [self._cut(bundle, entry)]
            case Stand.FAILED, State.ASSIGNING | State.ASSIGNED | State.SPLITTING:
                return [Publish(bundle, _WITHDRAWAL[entry.state], entry.revision, reason=DECLINED)]
            case _:
                return []

    def _begin(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
        """Acquire, but only after the host has released every earlier ownership of this range."""
        if self._must_wait(bundle) or (at_host is not None and at_host.stand is Stand.RELEASING):
            return []
        if at_host is not None and at_host.stand in (Stand.ACQUIRING, Stand.SERVING):
            self._hosted[bundle] = Hosted(Stand.RELEASING, at_host.token)
            return [Stop(bundle), Release(bundle, at_host.token, None)]
        self._hosted[bundle] = Hosted(Stand.ACQUIRING, entry.token)
        return [Acquire(bundle, entry.token, entry.hand_off)]

    def _give(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
        if at_host is None and self._must_wait(bundle):
            return []
        if at_host is None or at_host.stand in (Stand.RELEASED, Stand.SUSPENDED, Stand.FAILED):
            hand_off = at_host.hand_off if at_host else None
            return [Stop(bundle), Publish(bundle, Action.RELEASE, entry.revision, hand_off)]
        if at_host.stand is Stand.RELEASING:
            return []
        self._hosted[bundle] = Hosted(Stand.RELEASING, entry.token)
        return [Stop(bundle), Release(bundle, entry.token, entry.target)]

    def _as_target(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
        if entry.state is not State.TRANSFERRING:
            return []
        if at_host is None or at_host.token != entry.revision:
            self._hosted[bundle] = Hosted(Stand.PREPARING, entry.revision)
            return [Prepare(bundle, entry.revision)]
        if at_host.stand is Stand.PREPARED:
            return [Publish(bundle, Action.READY, entry.revision)]
        if at_host.stand is Stand.FAILED:
            return [Publish(bundle, Action.CANCEL, entry.revision, reason=UNPREPARED)]
        return []

    def _drop(self, bundle: Bundle, at_host: Hosted | None) -> list[Effect]:
        if at_host is None:
            return []
        del self._hosted[bundle]
        self._left(bundle)
        if at_host.stand in (Stand.RELEASED, Stand.SUSPENDED, Stand.FAILED):
            return [Stop(bundle)]
        return [Stop(bundle), Abandon(bundle)]

    def _left(self, bundle: Bundle) -> None:
        leaving = self._leaving.get(bundle.namespace, set())
        leaving.discard(bundle)
        if not leaving:
            self._leaving.pop(bundle.namespace, None)

    # --- cuts

    def _cut(self, bundle: Bundle, entry: Ownership) -> Effect:
        match entry.algorithm:
            case _ if entry.boundaries:
                return self._create(bundle, entry.revision, entry.boundaries)
            case "" | Algorithm.RANGE:
                cuts = evenly(bundle, entry.parts or FEWEST_PARTS)
                return self._create(bundle, entry.revision, cuts)
            case by_keys if by_keys in BY_KEYS:
                return AskKeys(bundle, entry.revision, by_keys)
            case other:
                return self._create(
                    bundle, entry.revision, NoCuts(f"{self.me.name} does not know the algorithm {other!r}")
                )

    def _create(self, bundle: Bundle, seen: int, cuts: tuple[int, ...] | NoCuts) -> Publish:
        if isinstance(cuts, NoCuts):
            return Publish(bundle, Action.CANCEL, seen, reason=cuts.reason)
        return Publish(bundle, Action.CREATE, seen, boundaries=cuts)

    def keys_answered(
        self,
        bundle: Bundle,
        seen: int,
        entry: Ownership | None,
        keys: Sequence[KeyRate] | NoCuts,
        bounds: Bounds = UNBOUNDED,
    ) -> list[Effect]:
        """The host reported where the bundle's keys are (or why not); ignored if the entry has changed meanwhile."""
        if entry is None or entry.revision != seen or entry.state is not State.SPLITTING or entry.holder != self.me:
            return []
        parts = entry.parts or FEWEST_PARTS
        cuts = keys if isinstance(keys, NoCuts) else cuts_of(bundle, entry.algorithm, parts, keys, bounds)
        return [self._create(bundle, seen, cuts)]

    # --- proofs

    def suspend(self, bundle: Bundle) -> list[Effect]:
        """Our proofs have run out: another broker may serve this soon, so the host must stop."""
        at_host = self._hosted.get(bundle)
        if at_host is None or at_host.stand is not Stand.SERVING:
            return []
        self._hosted[bundle] = Hosted(Stand.SUSPENDED, at_host.token)
        return [Stop(bundle), Abandon(bundle)]

    def resume(self, bundle: Bundle, entry: Ownership | None) -> list[Effect]:
        """Our proofs are fresh again: acquire the bundle if it is still ours, without its used hand-off."""
        at_host = self._hosted.get(bundle)
        if at_host is None or at_host.stand is not Stand.SUSPENDED:
            return []
        if entry is None or entry.holder != self.me or entry.token != at_host.token:
            return []
        if entry.state not in SERVING_STATES:
            return []
        self._hosted[bundle] = Hosted(Stand.ACQUIRING, entry.token)
        return [Acquire(bundle, entry.token, None)]

    # --- reports of the shell; each is followed by a reconcile

    def prepared(self, bundle: Bundle, token: int, failed: bool) -> list[Effect]:
        """The host's `prepare` ended."""
        if not self.stands(bundle, Stand.PREPARING, token):
            return []
        self._hosted[bundle] = Hosted(Stand.FAILED if failed else Stand.PREPARED, token)
        return [Abandon(bundle)] if failed else []

    def acquired(self, bundle: Bundle, token: int, failed: bool) -> list[Effect]:
        """The host's `acquire` ended."""
        if not self.stands(bundle, Stand.ACQUIRING, token):
            return []
        self._hosted[bundle] = Hosted(Stand.FAILED if failed else Stand.SERVING, token)
        return [Abandon(bundle)] if failed else [Serve(bundle, token)]

    def released(self, bundle: Bundle, token: int, hand_off: bytes | None, failed: bool) -> list[Effect]:
        """The host's `release` ended, with its hand-off, or failed: then it is told to abandon."""
        if not self.stands(bundle, Stand.RELEASING, token):
            return []
        self._hosted[bundle] = Hosted(Stand.RELEASED, token, None if failed else hand_off)
        self._left(bundle)
        return [Abandon(bundle)] if failed else []

    def stands(self, bundle: Bundle, stand: Stand, token: int) -> bool:
        """Whether the bundle has this state at the host, under this token."""
        at_host = self._hosted.get(bundle)
        return at_host is not None and at_host.stand is stand and at_host.token == token

    def fence(self) -> list[Effect]:
        """This incarnation is over: stop serving, tell the host to abandon, publish nothing."""
        effects: list[Effect] = []
        for bundle, at_host in list(self._hosted.items()):
            effects += self._drop(bundle, at_host)
        return effects


class Stand(StrEnum):
    """The state of a bundle at the host."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    ACQUIRING = "acquiring"
    SERVING = "serving"
    RELEASING = "releasing"
    RELEASED = "released"
    SUSPENDED = "suspended"
    """The host served it and was told to abandon, since our proofs had run out; we may still be the holder."""
    FAILED = "failed"


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """A bundle at our host: its state and token (while preparing: the revision of the transfer)."""

    stand: Stand
    token: int
    hand_off: bytes | None = None


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Serve from now on; `token` is the offset of the fencing token."""

    bundle: Bundle
    token: int


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Stop serving. Takes effect before anything else happens."""

    bundle: Bundle


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `prepare`; report with `prepared`."""

    bundle: Bundle
    token: int


class Acquire(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `acquire`; report with `acquired`."""

    bundle: Bundle
    token: int
    hand_off: bytes | None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `release`; report with `released`."""

    bundle: Bundle
    token: int
    to: BrokerId | None


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `abandon`; nothing waits for it."""

    bundle: Bundle


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publish this action for the bundle at revision `seen`, until it is accepted or the bundle has changed."""

    bundle: Bundle
    action: Action
    seen: int
    hand_off: bytes | None = None
    reason: str = ""
    boundaries: tuple[int, ...] = ()


class AskKeys(msgspec.Struct, frozen=True, gc=False):
    """Ask the host for the bundle's keys, and their rates if the algorithm needs them; report with `keys_answered`.

    Asked once for each revision `seen`.
    """

    bundle: Bundle
    seen: int
    algorithm: str


Effect = Serve | Stop | Prepare | Acquire | Release | Abandon | Publish | AskKeys
