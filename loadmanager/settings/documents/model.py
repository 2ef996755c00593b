"""Documents with versions, in a topic: the record format and its result. Values only.

Each change is an entry in a topic of one partition that keeps everything. (A compacted topic would not do: if the log
took an append twice it keeps the later copy, which may be refused by then.) As in the state channel, the first entry
that names the present version wins, and every reader refuses the later ones. So nobody overwrites what they have not
seen; a table of last values would keep the loser.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

ABSENT = 0
"""The version of a document that was never written; a deletion is a version as well."""

DELETED = b"null"
"""The value that deletes a document; no document's value is null."""


POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC = "policies", "settings", "plans"
DOCUMENT_TOPICS = (POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to change a document. `seen` is the version that its author saw; `value` null deletes."""

    id: str
    name: str
    seen: int
    value: msgspec.Raw
    author: str = ""
    at_ms: int = 0
    reason: str = ""


class Version(msgspec.Struct, Generic[T], frozen=True):
    """One accepted version of a document. `value` None: it was deleted. `offset`: its place in the topic.

    If not `readable`, `defect` says why this release cannot use it (a newer release wrote it in an unknown form, or an
    older one accepted what is now refused); `value` is then that of the version before.
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
