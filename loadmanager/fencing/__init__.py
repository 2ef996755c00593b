"""Stores that refuse the writes of a former owner: `SqliteStore`, `PostgresStore`, `RedisStore`, and asyncio variants.

A broker that lost a bundle may not know it yet: it was paused, or its write is still under way. Only the store can
refuse that write. So the store keeps *fences*: for each range of a namespace's hash space the fencing token of the
owner. A new owner first raises the fence of its bundle's range to its token, then loads. Every write checks, in the
same transaction or script, that the fence at the position of its key still has the writer's token. The new owner loads
all that the former one committed before the fence was raised; later writes of the former owner raise `FencedOut`.

    def acquire(self, bundle, token, hand_off):            # a hook of the BundleHost
        with store.raising(Claim(bundle, token)) as cursor:
            ...                                            # load what the range has
    with broker.admit(key) as claim, store.writing(claim, key) as cursor:
        cursor.execute(...)                                # your tables, in the transaction of the check

The stores know only ranges: raising a part of a range cuts it (a split), raising across several ranges replaces them
(a merge). `fences.py` has the rules, each other file a driver. docs/embedding.md says how to choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmanager.on_demand import on_demand

if TYPE_CHECKING:
    from loadmanager.fencing.fences import FencedOut
    from loadmanager.fencing.postgresql import AsyncPostgresStore, PostgresStore
    from loadmanager.fencing.redis import AsyncRedisStore, RedisStore
    from loadmanager.fencing.sqlite import SqliteStore

__all__ = ["AsyncPostgresStore", "AsyncRedisStore", "FencedOut", "PostgresStore", "RedisStore", "SqliteStore"]

__getattr__ = on_demand(
    __name__,
    {
        "AsyncPostgresStore": f"{__name__}.postgresql",
        "AsyncRedisStore": f"{__name__}.redis",
        "FencedOut": f"{__name__}.fences",
        "PostgresStore": f"{__name__}.postgresql",
        "RedisStore": f"{__name__}.redis",
        "SqliteStore": f"{__name__}.sqlite",
    },
)
