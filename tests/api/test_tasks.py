"""`/v1/tasks`: what hangs can be seen, and no value with it."""

from __future__ import annotations

import asyncio
import re
import threading

from loadmanager_api.routes.this_broker import TASKS_SHOWN
from tests.api.conftest import Cluster, cluster

__all__ = ["cluster"]


async def test_what_a_task_and_a_thread_wait_in_is_shown_without_values(cluster: Cluster) -> None:
    await cluster.start()
    over, begun = threading.Event(), asyncio.Event()

    async def hangs_in_here(password: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def outer() -> None:
        await hangs_in_here("hunter2")

    thread = threading.Thread(target=lambda: over.wait(20), name="a-thread-that-waits")
    thread.start()
    task = asyncio.create_task(outer(), name="a-task-that-hangs")
    await begun.wait()
    try:
        _, shown, _ = await cluster.ask("GET", "/v1/tasks")
    finally:
        over.set()
        thread.join()
        task.cancel()
    assert "task a-task-that-hangs" in shown
    assert re.search(r"outer\n.*hangs_in_here\n.*locks.py:\d+ wait\n", shown), shown
    assert re.search(r"node\.py:\d+ run\n", shown), "the broker's own tasks are there, too"
    assert "thread a-thread-that-waits" in shown
    assert "hunter2" not in shown


async def test_a_flood_of_tasks_is_cut(cluster: Cluster) -> None:
    await cluster.start()
    many = [asyncio.create_task(asyncio.Event().wait()) for _ in range(TASKS_SHOWN)]
    _, shown, _ = await cluster.ask("GET", "/v1/tasks")
    for task in many:
        task.cancel()
    assert "tasks more" in shown
    assert shown.count("\ntask ") <= TASKS_SHOWN
