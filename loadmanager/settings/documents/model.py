"""Documents with versions, in a topic: the record format, and what a reader makes of it. Values only.

Each change is an entry in a topic of one partition that keeps everything, so the history is kept (a compacted topic
would not do: of an append that the log took twice it keeps the later copy, which may have lost meanwhile). Entries are
folded in order by the law of the state channel: the first
that names the present version wins, later ones are refused by every reader alike. So nobody overwrites what he has
not seen, and a last-value table could not do this (it would keep the loser).
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

ABSENT = 0
"""The version of a document that was never written; a deletion counts as a version as well."""

DELETED = b"null"
"""What stands in place of a value to delete a document; no document's value is null."""


POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC = "policies", "settings", "plans"
DOCUMENT_TOPICS = (POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to change a document. `seen` is the version that its author had before him; `value` null deletes."""

    id: str
    name: str
    seen: int
    value: msgspec.Raw
    author: str = ""
    at_ms: int = 0
    reason: str = ""


class Version(msgspec.Struct, Generic[T], frozen=True):
    """One accepted state of a document. `value` None: it was deleted. `offset`: where in the topic.

    Not `readable`: this release cannot work with it, for the `defect` that it has here (a newer release wrote it in a
    form that this one does not know, or an older one took what is refused now); the value is the one before it.
    """

    name: str
    version: int
    value: T | None
    author: str
    at_ms: int
    reason: str
    offset: int
    defect: str = ""

    @property
    def readable(self) -> bool:
        """Whether the value is what was written."""
        return not self.defect
