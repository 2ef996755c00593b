"""The store of fences in an SQL database: `SqlStore`. `sqlite.py` and `postgresql.py` implement the transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Generic, Self, TypeVar

from loadmanager.broker.serving import Claim
from loadmanager.fencing.fences import Fences, Steps
from statechannel.law.bundle import Key

C = TypeVar("C")
"""The driver's cursor."""


class SqlStore(ABC, Generic[C]):
    """Fences beside the service's own tables. Any thread may use it; use `with`, or `close()` it."""

    _fences: Fences

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the store's own connections."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[C]:
        """A transaction for several claims at once, with `raise_fence` and `check`."""

    @abstractmethod
    def _run(self, cursor: C, steps: Steps) -> None:
        """Run the statements in the cursor's transaction."""

    @property
    def schema(self) -> str:
        """The statement that creates the table of fences, for the service's own migrations."""
        return self._fences.schema

    def create(self) -> None:
        """Create the table of fences unless it exists. Call it once, before anything else."""
        with self.transaction() as cursor:
            self._run(cursor, self._fences.creating())

    @contextmanager
    def raising(self, claim: Claim) -> Generator[C]:
        """Raise the fence of the claim's bundle; load from the cursor in the same transaction. Raises FencedOut."""
        with self.transaction() as cursor:
            self.raise_fence(cursor, claim)
            yield cursor

    @contextmanager
    def writing(self, claim: Claim, key: str | Key) -> Generator[C]:
        """Check the fence; write data of the key with the cursor, in the same transaction.

        Raises FencedOut, or ValueError for a key of another bundle.
        """
        with self.transaction() as cursor:
            self.check(cursor, claim, key)
            yield cursor

    def raise_fence(self, cursor: C, claim: Claim) -> None:
        """As `raising`, within a `transaction()`."""
        self._run(cursor, self._fences.raising(claim))

    def check(self, cursor: C, claim: Claim, key: str | Key) -> None:
        """As `writing`, within a `transaction()`."""
        self._run(cursor, self._fences.checking(claim, key))


def run(cursor: Any, steps: Steps, mark: str = "%s") -> None:
    """Run the statements on a cursor whose driver writes `mark` for a parameter."""
    rows: Any = None
    with suppress(StopIteration):
        while True:
            statement, parameters = steps.send(rows)
            cursor.execute(statement.replace("%s", mark), parameters)
            rows = cursor.fetchall() if cursor.description else []
