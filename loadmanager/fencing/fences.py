"""The rules of fences, as SQL that any driver can run: `Fences`; and what a refused writer gets: `FencedOut`.

A table of ranges `[lo, hi)` that do not overlap, each with the token that its owner raised. `raising` and `checking`
yield statements and are sent the rows: `sql.run` does that with a cursor, an asyncio driver with `await`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from importlib import import_module
from typing import Any

from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import NotServing
from loadmanager.errors import needs_extra
from statechannel.law.bundle import Key
from statechannel.law.record import Token

Row = tuple[Any, ...]
Steps = Generator[tuple[str, tuple[object, ...]], list[Row], None]
"""Statements with their parameters, `%s` for each; what is sent in are the rows of the last one."""

DEFAULT_TABLE = "loadmanager_fence"
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)


class FencedOut(NotServing):
    """The store refused this claim, and nothing was written: `standing` is the token that stands there, if any does.

    It is a `NotServing`: a client that is told so looks the key up again and finds the owner.
    """

    def __init__(self, message: str, standing: Token | None = None) -> None:
        super().__init__(message)
        self.standing = standing


def raise_refused(claim: Claim, standing: str) -> FencedOut:
    """Why the fence of this claim cannot be raised where this token stands."""
    token = Token.parse(standing)
    if token == claim.token:
        why = "stands for another range. Do two clusters use this store?"
    else:
        why = f"is higher than {claim.token}: a newer owner raised it"
    return FencedOut(f"{claim.bundle} is fenced: {token} {why}", token)


def write_refused(claim: Claim, standing: str | None) -> FencedOut:
    """Why this claim may not write where this token, or none, stands."""
    token = None if standing is None else Token.parse(standing)
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
    """A package that is imported when it is used. Raises MissingExtra where it is not installed."""
    with needs_extra(extra, "this store"):
        return import_module(module)


class Fences:
    """The statements of one table of fences. `shared` locks the row that a SELECT returns: nobody deletes it until the
    transaction ends. `alone` keeps others from raising fences of a namespace meanwhile. A database in which one
    transaction writes at a time needs neither."""

    def __init__(self, table: str, *, shared: str = "", alone: str = "") -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError(f"{table!r} is no name of a table; write letters, digits and _, or schema.table")
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
        """Create the table unless it is there."""
        if self._alone:
            yield self._alone, ("",)  # two that create it at the same time would fail
        yield self.schema, ()

    def raising(self, claim: Claim) -> Steps:
        """Let the range of the claim's bundle have its token. Raises FencedOut where a higher one stands, or the same
        one for another range."""
        namespace, (lo, hi), token = claim.bundle.namespace, claim.bundle.bounds, str(claim.token)
        if (yield self._stands, (namespace, lo, hi, token)):
            return
        if self._alone:
            yield self._alone, (namespace,)
        standing = yield self._overlapping, (namespace, hi, lo, namespace, lo)
        if standing == [(lo, hi, token)]:
            return
        highest = max((Token.parse(known) for _, _, known in standing), default=None)
        if highest is not None and highest >= claim.token:
            raise raise_refused(claim, str(highest))
        pieces = [(lo, hi, token)]
        for old_lo, old_hi, known in standing:
            yield self._delete, (namespace, old_lo)
            pieces += [(old_lo, lo, known)] if old_lo < lo else []
            pieces += [(hi, old_hi, known)] if old_hi > hi else []
        for piece in pieces:
            yield self._insert, (namespace, *piece)

    def checking(self, claim: Claim, key: str | Key) -> Steps:
        """Raises FencedOut unless the claim's token stands at the key's position; it stays there until the end of the
        transaction. Raises ValueError for a key of another bundle."""
        position, token = position_in(claim, key), str(claim.token)
        where = (claim.bundle.namespace, position, position)
        while (yield self._locked_at, where) != [(token,)]:
            standing = yield self._at, where  # it may have been cut while we waited for the lock
            if standing != [(token,)]:
                raise write_refused(claim, standing[0][0] if standing else None)
