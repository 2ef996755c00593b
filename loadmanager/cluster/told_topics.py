"""Topics that this cluster was told of, e.g. by pulsar-admin when it creates one. Nothing depends on them.

The load manager knows ranges of keys, not keys: a topic exists when its service says so. Pulsar's tools create, list
and delete topics nevertheless. So their names are kept, with the number of partitions, as long as the namespace
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import Version
from loadmanager.errors import Conflict, NotFound, VersionConflict
from statechannel.law.bundle import Key
from statechannel.ports import Log, TopicSpec
from statechannel.runtime.tasks import all_or_first_failure

TOPICS_TOPIC = "topics"
TOPICS = TopicSpec(TOPICS_TOPIC, 1)
TOLD_AT_MOST = 10_000
"""Topics and partitions of a namespace together: all of them are listed at once."""
TOLD_IN_ALL = 100_000
"""Topics of all namespaces: every broker has them in memory."""
_AT_ONCE = 64
"""How many are forgotten at once, with their namespace."""


class ToldTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic by its full name. `partitions`: 0 if it is not partitioned."""

    partitions: int = 0


class ToldTopics:
    """The topics; keep `documents.run()` running."""

    def __init__(self, log: Log, wall_ms: Callable[[], int], nonce: str) -> None:
        self.documents: Documents[ToldTopic] = Documents(
            log, TOPICS_TOPIC, decode=msgspec.json.Decoder(ToldTopic).decode, wall_ms=wall_ms, nonce=nonce
        )
        self._of: dict[str, dict[str, Version[ToldTopic]]] = {}
        """By namespace and full name."""
        self.documents.on_change(self._changed)

    def _changed(self, name: str, _old: Version[ToldTopic] | None, new: Version[ToldTopic]) -> None:
        namespace = "/".join(name.partition("://")[2].split("/", 2)[:2])  # a topic may have slashes
        topics = self._of.setdefault(namespace, {})
        topics.pop(name, None)
        if new.value is not None:
            topics[name] = new
        elif not topics:
            del self._of[namespace]

    def all(self) -> Mapping[str, ToldTopic]:
        """Every topic by its full name."""
        return self.documents.values()

    def of(self, namespace: str) -> Mapping[str, ToldTopic]:
        """The topics of a namespace, which need not exist any more."""
        return {name: each.value for name, each in self._of.get(namespace, {}).items() if each.value is not None}

    async def tell(self, topic: Key, partitions: int, author: str) -> None:
        """Keep a topic. Raises Conflict if it is there, or if there are too many; LogUnavailable."""
        known = self.of(topic.namespace)
        if topic.full_name in known:
            raise Conflict(f"topic {topic.full_name} exists already")
        if sum(max(1, told.partitions) for told in known.values()) + max(1, partitions) > TOLD_AT_MOST:
            raise Conflict(
                f"at most {TOLD_AT_MOST} topics and partitions are kept of a namespace; a topic needs no creation"
            )
        if len(self.all()) >= TOLD_IN_ALL:
            raise Conflict(f"at most {TOLD_IN_ALL} topics are kept of all namespaces; a topic needs no creation")
        version = self.documents.get(topic.full_name)
        seen = 0 if version is None else version.version
        await self.documents.put(topic.full_name, ToldTopic(partitions), seen=seen, author=author, reason="")

    async def forget(self, topic: Key, author: str) -> None:
        """Forget a topic. Raises NotFound, LogUnavailable."""
        if topic.full_name not in self.all():
            raise NotFound(
                f"topic {topic.full_name} was not created here; its data are the service's: have the service delete it"
            )
        await self.documents.delete(topic.full_name, seen=None, author=author, reason="")

    def versions(self, namespace: str) -> list[tuple[str, int]]:
        """The topics of a namespace, each with its version, for `forget_all`."""
        return [(name, each.version) for name, each in self._of.get(namespace, {}).items()]

    async def forget_all(self, versions: Iterable[tuple[str, int]], author: str) -> None:
        """Forget these topics of a deleted namespace; one that was created again meanwhile stays.

        Raises LogUnavailable; then some may be left.
        """
        left = iter(list(versions))

        async def forget_some() -> None:
            for name, version in left:
                with suppress(NotFound, VersionConflict):
                    await self.documents.delete(name, seen=version, author=author, reason="its namespace is deleted")

        await all_or_first_failure(forget_some() for _ in range(_AT_ONCE))
