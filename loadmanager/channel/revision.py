"""A revision of the whole table: how far each partition has been replayed. Clients keep it to go on from there."""

from __future__ import annotations

import re

import msgspec

_TEXT = re.compile(r"(\d{1,9}):(\d{1,18}(?:\.\d{1,18}){0,1023})", re.ASCII)


class Revision(msgspec.Struct, frozen=True, gc=False):
    """The log's generation and, for each partition, the next offset; written `0:12.5.7.3`."""

    generation: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.generation}:{'.'.join(map(str, self.offsets))}"

    @classmethod
    def parse(cls, text: str) -> Revision:
        """The inverse of `str()`. Raises ValueError."""
        match = _TEXT.fullmatch(text)
        if match is None:
            shown = text if len(text) <= 100 else f"{text[:100]}…"
            raise ValueError(f"{shown!r} is not a revision; write the id of an event, such as 0:12.5.7.3")
        return cls(int(match[1]), tuple(int(offset) for offset in match[2].split(".")))

    def at(self, partition: int, offset: int) -> Revision:
        """This revision with another offset for one partition."""
        return Revision(self.generation, (*self.offsets[:partition], offset, *self.offsets[partition + 1 :]))
