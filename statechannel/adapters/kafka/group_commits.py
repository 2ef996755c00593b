"""Commits offsets for consumer groups that have no members of Kafka's own protocols: their coordinator is elsewhere."""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import FORBIDDEN, Admin, text_of
from statechannel.adapters.kafka.clients import admin_settings, check_client_settings, connection_settings
from statechannel.adapters.kafka.group_offsets import GroupOffsets
from statechannel.errors import LogError, TopicUnknown

REFUSED = FORBIDDEN | {KafkaError.GROUP_AUTHORIZATION_FAILED}
OTHERS = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.ILLEGAL_GENERATION})

RETENTION = "offsets.retention.minutes"

_PULLED = re.compile(r"pulled=(\d{1,18})", re.ASCII)

PERMANENT = frozenset({KafkaError.OFFSET_METADATA_TOO_LARGE})


class GroupInUse(LogError):
    """Consumers of Kafka's own protocols are members of the group: Kafka takes commits from them alone."""


class GroupCommits:
    """Commits to one Kafka cluster; `bootstrap` and `client_settings` as for `KafkaLog`. Belongs to one loop."""

    def __init__(
        self, bootstrap: str, client_settings: Mapping[str, str] | None = None, request_timeout_s: float = 10.0
    ) -> None:
        check_client_settings(client_settings or {})
        connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
        self._admin = Admin(admin_settings(connection), bootstrap, request_timeout_s)
        self._offsets = GroupOffsets(connection)
        self._timeout_s = request_timeout_s

    async def commit(
        self, group: str, offsets: Mapping[tuple[str, int], int], pulled: Mapping[tuple[str, int], int]
    ) -> None:
        """Store where the group goes on, by topic and partition; asked again while Kafka does not answer.

        `pulled`, which may lack some, is stored beside as the commits' metadata: the first offsets that the group has
        not pulled. Raises LogUnavailable; GroupInUse; TopicUnknown; LogError for lack of rights.
        """
        wanted = [
            TopicPartition(*each, offset, f"pulled={pulled[each]}" if each in pulled else "")
            for each, offset in offsets.items()
        ]

        async def ask() -> None:
            try:
                _check(await asyncio.to_thread(self._offsets.commit, group, wanted, self._timeout_s))
            except KafkaException as error:
                self._refuse(group, error)
                raise

        await self._admin.until_answered(ask, self._timeout_s)

    async def committed(
        self, group: str, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int | None]]:
        """The committed offset of each partition that has one, with its pull offset if that is known.

        Asks the server that keeps the group, not the list of groups, which may lack it for a while. Raises as `commit`.
        """

        async def ask() -> dict[tuple[str, int], tuple[int, int | None]]:
            try:
                found = await asyncio.to_thread(self._offsets.committed, group, sorted(partitions), self._timeout_s)
                _check(found)
            except KafkaException as error:
                self._refuse(group, error)
                raise
            return {
                (each.topic, each.partition): (each.offset, pulled_of(each.metadata))
                for each in found
                if each.offset >= 0
            }

        return await self._admin.until_answered(ask, self._timeout_s)

    async def retention_s(self) -> float | None:
        """How long Kafka keeps committed offsets of groups without members: the least `offsets.retention.minutes` of
        its servers. None without the right to describe their settings. Raises LogUnavailable."""

        async def ask() -> float | None:
            try:
                servers = (await self._admin.cluster()).nodes
                settings = [await self._admin.settings(ResourceType.BROKER, str(each.id)) for each in servers]
            except KafkaException as error:
                if error.args[0].code() in FORBIDDEN:
                    return None
                raise
            return min((int(each[RETENTION]) * 60.0 for each in settings), default=None)

        return await self._admin.until_answered(ask, self._timeout_s)

    def _refuse(self, group: str, error: KafkaException) -> None:
        """Raise what asking again does not change."""
        code = error.args[0].code()
        if code in OTHERS:
            raise GroupInUse(
                f"consumers of Kafka's own protocols are members of the group {group}: stop them, or give them another "
                "group.id"
            ) from error
        if code in REFUSED:
            text = f"{text_of(error)} Allow this user Read on the group {group} and on its topics"
            raise LogError(text) from error
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicUnknown(
                f"Kafka knows no such topic for a commit of the group {group}: {text_of(error)}"
            ) from error
        if code in PERMANENT:
            raise LogError(f"Kafka refuses a commit for the group {group}: {text_of(error)}") from error


def pulled_of(metadata: str | None) -> int | None:
    """The first offset that the group has not pulled, from a commit's metadata; None if it does not say."""
    found = _PULLED.fullmatch(metadata) if metadata else None
    return None if found is None else int(found[1])


def _check(places: Sequence[TopicPartition]) -> None:
    """Raise the error of the first partition that has one."""
    for each in places:
        if each.error is not None:
            raise KafkaException(each.error)
