"""The policies of the cluster as documents on a topic: reads, checked writes with compare-and-set, their history.

`validation.py` decides what is refused, `loadmanager.documents` which writes count. Two writers at the same
moment can write documents that are valid alone but contradict each other. Then both hold, and a bundle may have no
permitted broker. The next decision says which rules refused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import ABSENT, POLICIES_TOPIC, Version
from loadmanager.errors import Conflict, NotFound
from loadmanager.model.policies.codec import decode, encode, fold, key_of
from loadmanager.model.policies.model import (
    NO_POLICIES,
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    IsolationPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)
from loadmanager.model.policies.patterns import try_names
from loadmanager.model.policies.validation import Findings, Known, check, check_deletion
from statechannel.errors import LogUnavailable
from statechannel.ports import Log
from statechannel.runtime.tasks import Blocking, at_once

READ_TIMEOUT_S = 10.0
MATCHED_AT_ONCE = 100
"""Names matched with a policy's patterns in one turn of the loop."""

ATTEMPTS = 5
"""How often a change that names no version is tried, if other writers are faster."""

EMPTY: Mapping[Kind, Policy] = {
    Kind.NAMESPACE: NamespacePolicy(),
    Kind.BUNDLE: BundlePolicy(),
    Kind.BROKER: BrokerPolicy(),
    Kind.CLUSTER: ClusterPolicy(),
}
"""The document that equals an absent one, by kind."""


class Written(msgspec.Struct, frozen=True):
    """An accepted change, with notes for its author. `forced` are the rules that the author overrode."""

    version: Version[Policy]
    notes: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


class PolicyStore:
    """The policies; keep `run()` running.

    `known` gives the present names of the cluster, to check documents against. `run_blocking` runs such a check, which
    may match all names with all patterns.
    """

    def __init__(
        self,
        log: Log,
        known: Callable[[], Known],
        wall_ms: Callable[[], int],
        nonce: str,
        run_blocking: Blocking = at_once,
    ) -> None:
        self.documents: Documents[Policy] = Documents(
            log, POLICIES_TOPIC, decode=decode, encode=encode, wall_ms=wall_ms, nonce=nonce, prepare=self._match
        )
        self._known = known
        self._run_blocking = run_blocking
        self._folded = NO_POLICIES

    async def start(self) -> None:
        """Create or check the topic. Raises LogUnavailable or TopicMismatch; may be tried again."""
        await self.documents.start()

    async def run(self) -> None:
        """Read until cancelled."""
        await self.documents.run()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once the topic is read up to its end at the start. Raises LogUnavailable after `timeout_s`."""
        if not await self.documents.wait_ready(timeout_s):
            raise LogUnavailable(f"the policies in topic {self.documents.topic} could not be read to their end")

    async def match_brokers(self) -> None:
        """Match the present policies with all brokers, in steps, so that the next placement finds it done."""
        for policy in tuple(self.current().isolation.values()):
            await self._match(policy)

    async def _match(self, policy: Policy) -> None:
        if isinstance(policy, IsolationPolicy):
            brokers = tuple(self._known().brokers)
            for patterns in (policy.primary, policy.secondary):
                for tried, _ in enumerate(try_names(patterns, brokers), 1):
                    if tried % MATCHED_AT_ONCE == 0:
                        await asyncio.sleep(0)

    # --- reading

    def current(self) -> Policies:
        """The policies that hold now; the same object until one changes."""
        if self._folded.revision != self.documents.revision:
            self._folded = fold(self.documents.values(), self.documents.revision)
        return self._folded

    def at(self, offset: int) -> Policies:
        """The policies that held after the entry at `offset` of the topic."""
        return fold(self.documents.at(offset), offset)

    def get(self, kind: Kind, name: str) -> Version[Policy]:
        """The document with its version; an unreadable one may have no value. Raises NotFound."""
        found = self.documents.get(key_of(kind, name))
        if found is None or (found.value is None and found.readable):
            raise NotFound(f"there is no {kind} policy {name!r}")
        return found

    def current_of(self, kind: Kind, name: str) -> Policy | None:
        """The document, None if there is none."""
        found = self.documents.get(key_of(kind, name))
        return None if found is None else found.value

    def version(self, kind: Kind, name: str) -> int:
        """The document's version, for `seen`; 0 if it was never written."""
        found = self.documents.get(key_of(kind, name))
        return ABSENT if found is None else found.version

    def latest(self, kind: Kind, name: str) -> Version[Policy] | None:
        """The newest version, which may be a deletion; None if it was never written."""
        return self.documents.get(key_of(kind, name))

    def history(self, kind: Kind, name: str) -> Sequence[Version[Policy]]:
        """Every version, with deletions, oldest first. Raises NotFound if it was never written."""
        found = self.documents.history(key_of(kind, name))
        if not found:
            raise NotFound(f"there never was a {kind} policy {name!r}")
        return found

    def on_change(self, listener: Callable[[Policies], None]) -> None:
        """Call `listener` on the loop with the policies that hold, now and after each change."""
        listener(self.current())

        def changed(_name: str, _old: Version[Policy] | None, _new: Version[Policy]) -> None:
            listener(self.current())

        self.documents.on_change(changed)

    # --- writing

    def proposed(self, kind: Kind, name: str, policy: Policy | None) -> Policies:
        """The policies that would hold with this document (None: deleted); writes nothing."""
        values = {key: value for key, value in self.documents.values().items() if key != key_of(kind, name)}
        if policy is not None:
            values[key_of(kind, name)] = policy
        return fold(values, self.documents.revision)

    async def check(
        self,
        kind: Kind,
        name: str,
        policy: Policy,
        *,
        seen: int | None = None,
        force: bool = False,
        strand: bool = False,
    ) -> Findings:
        """The findings of `put`, without writing. Raises as `put`: Invalid, NotFound, Conflict."""
        self.documents.check_seen(key_of(kind, name), seen)
        checked = await self._run_blocking(partial(check, kind, name, policy, self.current(), self._known()))
        checked.refuse(force=force, strand=strand)
        return checked

    async def check_deletion(self, kind: Kind, name: str, *, seen: int | None = None, force: bool = False) -> Findings:
        """The findings of `delete`, without writing. Raises as `delete`: NotFound, Conflict."""
        self.get(kind, name)
        self.documents.check_seen(key_of(kind, name), seen)
        checked = await self._run_blocking(partial(check_deletion, kind, name, self.current(), self._known()))
        checked.refuse(force=force)
        return checked

    async def put(
        self,
        kind: Kind,
        name: str,
        policy: Policy,
        *,
        seen: int | None = None,
        author: str,
        reason: str = "",
        force: bool = False,
        strand: bool = False,
    ) -> Written:
        """Set a document if its version still is `seen` (0: never written; None: any version).

        Raises Invalid, NotFound (its namespace or bundle), Conflict (a rule that nothing satisfies, unless `force`; or
        another version), LogUnavailable (it may or may not be written). With `strand` it may leave other
        namespaces without any broker, as Pulsar's may.
        """
        await self._all_read()
        checked = await self.check(kind, name, policy, force=force, strand=strand)
        before = self.documents.get(key_of(kind, name))
        version = await self.documents.put(
            key_of(kind, name), policy, seen=seen, author=author, reason=_with_forced(reason, author, checked)
        )
        return Written(version, (*checked.notes, *_taken_away(before, policy)), checked.refused)

    async def change(
        self,
        kind: Kind,
        name: str,
        to: Callable[[Any], Policy],
        *,
        seen: int | None = None,
        author: str,
        reason: str = "",
        force: bool = False,
    ) -> Written | None:
        """Replace a document by `to(document)` (of an empty one if there is none), which keeps other writers' fields.

        Returns None if nothing changes. Deletes a document that becomes empty. Raises as `put`.
        """
        await self.documents.know(key_of(kind, name), seen)
        empty = EMPTY.get(kind)
        for _ in range(ATTEMPTS):
            self.documents.check_seen(key_of(kind, name), seen)
            before = self.documents.get(key_of(kind, name))
            if before is not None and not before.readable:
                raise Conflict(
                    f"this broker cannot use version {before.version} of the {kind} policy {name!r}, nor change parts "
                    f"of it: {before.defect}; replace all of it, or ask a broker of the release that wrote it"
                )
            value = empty if before is None or before.value is None else before.value
            wanted = to(value)
            version = ABSENT if before is None else before.version
            if wanted == value:
                return None
            try:
                if wanted == empty:
                    return await self.delete(kind, name, seen=version, author=author, reason=reason, force=force)
                return await self.put(kind, name, wanted, seen=version, author=author, reason=reason, force=force)
            except Conflict:
                if self.version(kind, name) == version:
                    raise  # refused for its content, not for its version
        raise Conflict(f"others keep changing the {kind} policy {name!r}: try again later")

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        seen: int | None = None,
        author: str,
        reason: str = "",
        force: bool = False,
    ) -> Written:
        """Delete a document.

        Raises NotFound, Conflict (another version; or nothing would satisfy the remaining rules, unless `force`),
        LogUnavailable.
        """
        await self._all_read()
        checked = await self.check_deletion(kind, name, force=force)
        version = await self.documents.delete(
            key_of(kind, name), seen=seen, author=author, reason=_with_forced(reason, author, checked)
        )
        return Written(version, checked.notes, checked.refused)

    async def _all_read(self) -> None:
        """Read all that others have written by now, so that no contradicting document is accepted after theirs."""
        await self.wait_ready(READ_TIMEOUT_S)
        await self.documents.catch_up()


def _with_forced(reason: str, author: str, checked: Findings) -> str:
    forced = f"forced by {author}: {'; '.join(checked.refused)}" if checked.refused else ""
    return " - ".join(filter(None, (reason, forced)))


def _taken_away(before: Version[Policy] | None, policy: Policy) -> tuple[str, ...]:
    """A note on fields that the new document lacks: its author may not have seen them."""
    if before is None or type(before.value) is not type(policy):
        return ()
    said = msgspec.to_builtins(before.value)
    gone = {name: said[name] for name in said if name not in msgspec.to_builtins(policy)}
    if not gone:
        return ()
    by = f" by {before.author}" if before.author else ""
    return (f"version {before.version}{by} also had {msgspec.json.encode(gone).decode()}, which is gone now",)
