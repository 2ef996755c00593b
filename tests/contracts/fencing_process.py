"""An owner as a process: raises the fence, writes 1, begins to write 2, and waits within that to be killed."""

from __future__ import annotations

import signal
import sys

from tests.contracts.test_fencing_contract import claim, key, sql_store

kind, where, namespace, table = sys.argv[1:]
own, name = claim(namespace, 0, 8, 5), key(namespace, 1)
with sql_store(kind, where, idle_timeout_s=60) as store:
    store.create()
    with store.raising(own) as cursor:
        cursor.execute(f"CREATE TABLE {table} (value INTEGER)")
    for value in (1, 2):
        with store.writing(own, name) as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ({value})")
            if value == 2:
                print("written", flush=True)
                signal.pause()
