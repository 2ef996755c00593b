"""What a broker must do for each bundle that names it, decided from the ownership table and what its host has done.

Level-triggered: `reconcile(bundle, entry)` compares what the table says with where the host stands and returns the
effects that close the gap; nothing is remembered that the two do not say. It is called after every accepted change,
after every hook that ended, and at start for every record that names us, those in flight included. Pure.

| table says                    | host stands at     | effects                                              |
|-------------------------------|--------------------|------------------------------------------------------|
| Assigning(me)                 | nothing, prepared  | acquire; then serve and publish `return`             |
| Transferring(A→me)            | nothing            | prepare; then publish `ready` (failed: `cancel`)     |
| Releasing(me→to)              | serving            | stop serving, release; then publish `release`        |
| Revoking(me)                  | anything           | stop serving, abandon; publish `release`             |
| Assigned(me) (after a create) | nothing            | acquire, serve                                       |
| anything else                 | anything           | stop serving, abandon                                |
| (our proofs have run out)     | serving            | stop serving, abandon; acquire again when they are fresh |
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from statechannel.bundle import Bundle
from statechannel.record import Action, Broker
from statechannel.transitions import SERVING_STATES, State
from statechannel.verdict import Ownership


class Stand(StrEnum):
    """Where the host stands with a bundle."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    ACQUIRING = "acquiring"
    SERVING = "serving"
    RELEASING = "releasing"
    RELEASED = "released"
    SUSPENDED = "suspended"
    """It served and was told to abandon, because our proofs had run out; we may still be the holder."""
    FAILED = "failed"


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """A bundle at our host: where it stands, and under which token (for prepare: which transfer's revision)."""

    stand: Stand
    token: int
    hand_off: bytes | None = None


# --- effects, in the order in which the shell has to perform them


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Serve from now on, under this token's offset."""

    bundle: Bundle
    token: int


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Do not serve from now on. Takes effect before anything else happens."""

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
    to: Broker | None


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `abandon`; nobody waits for it."""

    bundle: Bundle


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publish this action for the bundle as seen at `seen`, until it is accepted or the bundle has moved on."""

    bundle: Bundle
    action: Action
    seen: int
    hand_off: bytes | None = None
    reason: str = ""


Effect = Serve | Stop | Prepare | Acquire | Release | Abandon | Publish


class AgentCore:
    """One incarnation's duties."""

    def __init__(self, me: Broker) -> None:
        self.me = me
        self._hosted: dict[Bundle, Hosted] = {}

    def hosted(self) -> dict[Bundle, Hosted]:
        """Where the host stands, by bundle."""
        return dict(self._hosted)

    def reconcile(self, bundle: Bundle, entry: Ownership | None) -> list[Effect]:
        """What to do now that the table has this entry for the bundle."""
        at_host = self._hosted.get(bundle)
        if entry is not None and entry.holder == self.me:
            return self._as_holder(bundle, entry, at_host)
        if entry is not None and entry.target == self.me:
            return self._as_target(bundle, entry, at_host)
        return self._drop(bundle, at_host)

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
            before = [] if at_host is None or at_host.stand is not Stand.SERVING else [Stop(bundle)]
            self._hosted[bundle] = Hosted(Stand.ACQUIRING, entry.token)
            return [*before, Acquire(bundle, entry.token, entry.hand_off)]
        if at_host.stand is Stand.FAILED and entry.state in (State.ASSIGNING, State.ASSIGNED):
            action = Action.RELEASE if entry.state is State.ASSIGNING else Action.UNLOAD
            return [Publish(bundle, action, entry.revision, reason="the host declined")]
        if at_host.stand is Stand.SERVING and entry.state is State.ASSIGNING:
            return [Publish(bundle, Action.RETURN, entry.revision)]
        return []

    def _give(self, bundle: Bundle, entry: Ownership, at_host: Hosted | None) -> list[Effect]:
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
            return [Publish(bundle, Action.CANCEL, entry.revision, reason="the target could not prepare")]
        return []

    def _drop(self, bundle: Bundle, at_host: Hosted | None) -> list[Effect]:
        if at_host is None:
            return []
        del self._hosted[bundle]
        if at_host.stand in (Stand.RELEASED, Stand.SUSPENDED, Stand.FAILED):
            return [Stop(bundle)]
        return [Stop(bundle), Abandon(bundle)]

    # --- proofs

    def suspend(self, bundle: Bundle) -> list[Effect]:
        """Our proofs have run out: somebody else may serve this soon, so the host has to stop."""
        at_host = self._hosted.get(bundle)
        if at_host is None or at_host.stand is not Stand.SERVING:
            return []
        self._hosted[bundle] = Hosted(Stand.SUSPENDED, at_host.token)
        return [Stop(bundle), Abandon(bundle)]

    def resume(self, bundle: Bundle, entry: Ownership | None) -> list[Effect]:
        """Our proofs are fresh again: take up what is still ours, from storage; its hand-off was used up before."""
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
        return [Abandon(bundle)] if failed else []

    def stands(self, bundle: Bundle, stand: Stand, token: int) -> bool:
        """Whether the host stands there with the bundle, under this token."""
        at_host = self._hosted.get(bundle)
        return at_host is not None and at_host.stand is stand and at_host.token == token

    def fence(self) -> list[Effect]:
        """This incarnation is over: stop everything, tell the host, publish nothing."""
        effects: list[Effect] = []
        for bundle, at_host in list(self._hosted.items()):
            effects += self._drop(bundle, at_host)
        return effects
