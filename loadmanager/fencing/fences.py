"""The rules of fences, as SQL that any driver can run: `Fences`; and the error of a refused writer: `FencedOut`.

A table has ranges `[lo, hi)` that do not overlap, each with the token that its owner raised. `raising` and `checking`
yield statements and receive their rows: `run` runs them with a cursor, an asyncio driver with `await`. `SqlStore` is
the store in an SQL database; `sqlite.py` and `postgresql.py` implement its transactions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from typing import Any, Generic, Self, TypeVar

from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import NotServing
from loadmanager.errors import needs_extra
from statechannel.law.bundle import Key
from statechannel.law.record import Token

Row = tuple[Any, ...]
Steps = Generator[tuple[str, tuple[object, ...]], list[Row], None]
"""Yields statements with their parameters, `%s` for each; send in the rows of the last statement."""

DEFAULT_TABLE = "loadmanager_fence"
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)


class FencedOut(NotServing):
    """The store refused this claim, and nothing was written; `stored` is the token in the store, if there is one.

    It is a `NotServing`: a client that gets it looks the key up again and finds the owner.
    """

    def __init__(self, message: str, stored: Token | None = None) -> None:
        super().__init__(message)
        self.stored = stored


def raise_refused(claim: Claim, stored: str) -> FencedOut:
    """The error for a fence that cannot be raised, because the store has the token `stored`."""
    token = Token.parse(stored)
    if token == claim.token:
        why = "belongs to another range: check whether two clusters use this store"
    else:
        why = f"is higher than {claim.token}: a newer owner raised it"
    return FencedOut(f"{claim.bundle} is fenced: {token} {why}", token)


def write_refused(claim: Claim, stored: str | None) -> FencedOut:
    """The error for a claim that may not write, because the store has the token `stored`, or none."""
    token = None if stored is None else Token.parse(stored)
    if token is None or token < claim.token:
        why = f"the fence has not been raised to {claim.token}: raise it before you load, then write"
    else:
        why = f"a newer owner raised the fence to {token}, beyond {claim.token}"
    return FencedOut(f"{claim.bundle} is fenced: {why}", token)


def position_in(claim: Claim, key: str | Key) -> int:
    """The key's position. Raises ValueError if it is not in the claimed bundle."""
    topic = Key.parse(key) if isinstance(key, str) else key
    if topic not in claim.bundle:
        raise ValueError(f"{topic} is not in {claim.bundle}: write each key under the claim that admitted it")
    return topic.position


def driver(module: str, extra: str) -> Any:
    """Import a package when it is used. Raises MissingExtra if it is not installed."""
    with needs_extra(extra, "this store"):
        return import_module(module)


class Fences:
    """The statements of one table of fences.

    `shared` locks the row that a SELECT returns: it cannot be deleted until the transaction ends. `alone` keeps others
    from raising fences of a namespace meanwhile. A database that runs one write transaction at a time needs neither.
    """

    def __init__(self, table: str, *, shared: str = "", alone: str = "") -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError(f"{table!r} is not a valid table name; write letters, digits and _, or schema.table")
        self.schema = (
            f"CREATE TABLE IF NOT EXISTS {table} (namespace TEXT NOT NULL, lo BIGINT NOT NULL, hi BIGINT NOT NULL, "
            "token TEXT NOT NULL, PRIMARY KEY (namespace, lo))"
        )
        self._alone = alone
        self._stands = f"SELECT 1 FROM {table} WHERE namespace = %s AND lo = %s AND hi = %s AND token = %s {shared}"
        self._overlapping = (
            f"SELECT lo, hi, token FROM {table} WHERE namespace = %s AND lo < %s AND hi > %s AND lo >= COALESCE("
            f"(SELECT MAX(lo) FROM {table} WHERE namespace = %s AND lo <= %s), 0)"
        )
        self._delete = f"DELETE FROM {table} WHERE namespace = %s AND lo = %s"
        self._insert = f"INSERT INTO {table} (namespace, lo, hi, token) VALUES (%s, %s, %s, %s)"
        self._at = f"SELECT token FROM {table} WHERE namespace = %s AND lo <= %s AND hi > %s ORDER BY lo DESC LIMIT 1"
        self._locked_at = f"{self._at} {shared}"

    def creating(self) -> Steps:
        """Create the table unless it exists."""
        if self._alone:
            yield self._alone, ("",)  # two concurrent creations would fail
        yield self.schema, ()

    def raising(self, claim: Claim) -> Steps:
        """Raise the fence of the claim's bundle to its token.

        Raises FencedOut if the range has a higher token, or another range has the same one.
        """
        namespace, (lo, hi), token = claim.bundle.namespace, claim.bundle.bounds, str(claim.token)
        if (yield self._stands, (namespace, lo, hi, token)):
            return
        if self._alone:
            yield self._alone, (namespace,)
        stored = yield self._overlapping, (namespace, hi, lo, namespace, lo)
        if stored == [(lo, hi, token)]:
            return
        highest = max((Token.parse(known) for _, _, known in stored), default=None)
        if highest is not None and highest >= claim.token:
            raise raise_refused(claim, str(highest))
        pieces = [(lo, hi, token)]
        for old_lo, old_hi, known in stored:
            yield self._delete, (namespace, old_lo)
            pieces += [(old_lo, lo, known)] if old_lo < lo else []
            pieces += [(hi, old_hi, known)] if old_hi > hi else []
        for piece in pieces:
            yield self._insert, (namespace, *piece)

    def checking(self, claim: Claim, key: str | Key) -> Steps:
        """Check that the fence at the key's position has the claim's token, and keeps it until the transaction ends.

        Raises FencedOut, or ValueError for a key of another bundle.
        """
        position, token = position_in(claim, key), str(claim.token)
        where = (claim.bundle.namespace, position, position)
        while (yield self._locked_at, where) != [(token,)]:
            stored = yield self._at, where  # the range may have been cut while we waited for the lock
            if stored != [(token,)]:
                raise write_refused(claim, stored[0][0] if stored else None)


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
