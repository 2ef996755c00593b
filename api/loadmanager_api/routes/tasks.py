"""`/v1/tasks`: what this process is doing now, to find what hangs; `loadmanager doctor` uses it.

Names of functions and files only: no values, so no secrets.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from fastapi import Request
from fastapi.responses import PlainTextResponse

from loadmanager_api.routing import ControlRouter, on_http_loop
from loadmanager_api.state import kept

router = ControlRouter(tags=["this broker"])

TASKS_SHOWN = 500
FRAMES_SHOWN = 20


@router.get("/v1/tasks", response_class=PlainTextResponse)
@on_http_loop
async def show_tasks(request: Request) -> str:
    """Show the stacks of all threads and of the tasks on the control loop, innermost call last. Works also if that loop
    hangs.
    """
    return "\n".join([*_threads(), *_tasks(kept(request).handover.control)]) + "\n"


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        yield f"thread {names.get(ident, ident)}"
        for call in traceback.extract_stack(frame, limit=FRAMES_SHOWN):
            yield _line(call.filename, call.lineno, call.name)


def _tasks(control: asyncio.AbstractEventLoop) -> Iterator[str]:
    tasks = sorted(asyncio.all_tasks(control), key=lambda task: task.get_name())
    for task in tasks[:TASKS_SHOWN]:
        yield f"task {task.get_name()}{' (being cancelled)' if task.cancelling() else ''}"
        for frame in islice(_awaiting(task.get_coro()), FRAMES_SHOWN):
            yield _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    if len(tasks) > TASKS_SHOWN:
        yield f"and {len(tasks) - TASKS_SHOWN} tasks more"


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits; `Task.get_stack` shows the first one only."""
    while coroutine is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                coroutine = getattr(coroutine, f"{kind}_{'yieldfrom' if kind == 'gi' else 'await'}", None)
                break
        else:
            return


def _line(file: str, number: int | None, name: str) -> str:
    return f"  {file}:{number} {name}"
