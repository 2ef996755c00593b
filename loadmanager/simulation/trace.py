"""The history of a simulated run: the last lines for people, and a digest of all of them for comparing runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

DEFAULT_LINES = 2_000


class Trace:
    """Readable lines `time process what`. Only the last `limit` are kept; the digest covers all.

    `now_s` gives true time. `executed` gives the number of callbacks so far, which is part of the digest: two runs with
    one digest took the same steps between any two lines.
    """

    def __init__(self, now_s: Callable[[], float], executed: Callable[[], int], limit: int = DEFAULT_LINES) -> None:
        self._now_s = now_s
        self._executed = executed
        self._lines: deque[str] = deque(maxlen=limit)
        self._hash = blake2b(digest_size=16)
        self.written = 0

    def write(self, who: str, what: str) -> None:
        """Add a line. `what` must not name memory addresses, and sets only sorted, or digests will differ."""
        line = f"{self._now_s():12.6f} {who:<20} {what}"
        self._lines.append(line)
        self.written += 1
        self._hash.update(f"{self._executed()} {line}\n".encode())

    def lines(self) -> list[str]:
        """The kept lines, oldest first; if earlier ones were dropped, the first line says how many."""
        dropped = self.written - len(self._lines)
        return [f"… {dropped} earlier lines dropped", *self._lines] if dropped else list(self._lines)

    def digest(self) -> str:
        """Equal for two runs if, and only if, they wrote the same lines after the same steps."""
        return self._hash.hexdigest()
