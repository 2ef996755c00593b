"""`CONFIG`: each member reads what the configuration says for its name.

RocketMQ's gives every consumer the queues of its own configuration, and leaves it to people that no two read one. Here
one configuration is for the whole group, so a partition has one reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Named(Protocol):
    """A member, as far as it matters here."""

    @property
    def name(self) -> str: ...

    @property
    def topics(self) -> tuple[str, ...]: ...


def by_config(
    config: Mapping[str, Mapping[str, tuple[int, ...]]], members: Mapping[str, Named], sizes: Mapping[str, int]
) -> dict[tuple[str, int], str]:
    """The reader of each partition that is configured and exists: members by their ids. Members of one name that
    subscribe to the topic take turns. A partition whose member is not there waits for it."""
    by_name: dict[str, list[str]] = {}
    for each in sorted(members):
        by_name.setdefault(members[each].name, []).append(each)
    found: dict[tuple[str, int], str] = {}
    for name, topics in config.items():
        for topic, numbers in topics.items():
            readers = [each for each in by_name.get(name, ()) if topic in members[each].topics]
            there = [number for number in sorted(numbers) if number < sizes.get(topic, 0)] if readers else ()
            found.update(((topic, number), readers[at % len(readers)]) for at, number in enumerate(there))
    return found
