"""Topics that somebody told this cluster of, as pulsar-admin does when it creates one; nothing depends on them.

The load manager knows ranges of keys, not keys: a topic exists when its service says so. Tools of Pulsar create, list
and delete topics all the same, so that their names are kept, with the number of partitions, for as long as the
namespace exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from loadmanager.errors import Conflict, NotFound
from loadmanager.settings.documents.view import Documents
from statechannel.law.bundle import Key
from statechannel.ports import Log, TopicSpec

TOPICS_TOPIC = "topics"
TOPICS = TopicSpec(TOPICS_TOPIC, 1)
TOLD_AT_MOST = 10_000
"""Topics and partitions of a namespace together: all of them are listed at once."""
_AT_ONCE = 64
"""How many are forgotten at once with their namespace."""


class ToldTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic by its full name. `partitions`: 0 if it is not partitioned."""

    partitions: int = 0


class ToldTopics:
    """The topics; keep `documents.run()` running."""

    def __init__(self, log: Log, wall_ms: Callable[[], int], nonce: str) -> None:
        self.documents: Documents[ToldTopic] = Documents(
            log, TOPICS_TOPIC, decode=msgspec.json.Decoder(ToldTopic).decode, wall_ms=wall_ms, nonce=nonce
        )

    def all(self) -> Mapping[str, ToldTopic]:
        """Every topic by its full name."""
        return self.documents.values()

    def of(self, namespace: str) -> Mapping[str, ToldTopic]:
        """The topics of a namespace, which need not exist any more."""
        return {name: told for name, told in self.all().items() if name.partition("://")[2].startswith(f"{namespace}/")}

    async def tell(self, topic: Key, partitions: int, author: str) -> None:
        """Keep a topic. Raises Conflict if it is there, or if there are too many; LogUnavailable."""
        known = self.of(topic.namespace)
        if topic.full_name in known:
            raise Conflict(f"topic {topic.full_name} exists already")
        if sum(max(1, told.partitions) for told in known.values()) + max(1, partitions) > TOLD_AT_MOST:
            raise Conflict(
                f"at most {TOLD_AT_MOST} topics and partitions are kept of a namespace; a topic needs no creation"
            )
        version = self.documents.get(topic.full_name)
        seen = 0 if version is None else version.version
        await self.documents.put(topic.full_name, ToldTopic(partitions), seen=seen, author=author, reason="")

    async def forget(self, topic: Key, author: str) -> None:
        """Keep a topic no longer. Raises NotFound, LogUnavailable."""
        if topic.full_name not in self.all():
            raise NotFound(
                f"nobody created topic {topic.full_name} here; its data are the service's: have the service delete it"
            )
        await self.documents.delete(topic.full_name, seen=None, author=author, reason="")

    async def forget_all(self, names: Iterable[str], author: str) -> None:
        """Keep these topics of a deleted namespace no longer. Raises LogUnavailable; then some may be left."""
        left = iter(list(names))

        async def forget_some() -> None:
            for name in left:
                with suppress(NotFound):  # somebody else was faster
                    await self.documents.delete(name, seen=None, author=author, reason="its namespace is deleted")

        await asyncio.gather(*(forget_some() for _ in range(_AT_ONCE)))
