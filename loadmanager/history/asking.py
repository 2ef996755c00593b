"""How often a Spark Connect server that does not answer is asked again. Imported where PySpark's client for it is used.

PySpark retries for ten minutes, and again for each step that a failed job has to clean up. A restarted server has none
of the session's state, so waiting for it is useless. Half a minute is enough for a short network failure.
"""

from __future__ import annotations

from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

TIMES, EVERY_MS = 8, 5_000
"""How often, and how long to wait at most between: some 25 s in all."""


class Patience(DefaultPolicy):
    """Of one session: once it has given up on a question, no other question is asked again."""

    def __init__(self) -> None:
        super().__init__(max_retries=TIMES, max_backoff=EVERY_MS)
        self.over = False

    def can_retry(self, e: BaseException) -> bool:
        """Whether asking again may help."""
        return not self.over and super().can_retry(e)

    def to_state(self) -> RetryPolicyState:
        """For one question."""
        return _Question(self)


class _Question(RetryPolicyState):
    def __init__(self, patience: Patience) -> None:
        super().__init__(patience)
        self._patience = patience

    def next_attempt(self) -> int | None:
        wait_ms = super().next_attempt()
        self._patience.over |= wait_ms is None
        return wait_ms
