"""`Idempotency-Key` and `Prefer: respond-async`: a change that is sent twice is made once, and one that takes long is
answered at once.

Such a change is an operation (`loadmanager/cluster/operation_log.py`). The broker begins it in the log before it
changes anything, and keeps the answer there, so that any broker can repeat it. `OperationStatus` and what follows
define how an operation is shown: its state, its progress, and the answer that it has or will have. All this belongs to
the endpoints' loop; queries of the operation log run on the control loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from loadmanager.broker.node import Node
from loadmanager.cluster.operation_log import Operation, OperationState, digest_of, id_of
from loadmanager.diagnostics.redaction import redact_and_shorten
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Unavailable
from loadmanager_api.access.sender import Sender
from loadmanager_api.audit import about
from loadmanager_api.problems import problem, problem_of, respond
from statechannel.errors import InvalidName, LogUnavailable
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class OperationStatus(StrEnum):
    """`lost`: its broker is gone before it ended; it may have been carried out in part."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class OperationResponse(BaseModel):
    """A request that is or was carried out, once. `action` names what was asked for, `about` the thing.

    `status` and `result` are its answer: null while it runs; `result` too if the answer has no body, or a very long
    one. `progress` is the present state of the thing as the asked broker knows it: of a bundle its `state` and `owner`,
    of a namespace how many `bundles` it has and how many of them are `owned`; null for all else.
    """

    id: str
    action: str
    about: str
    namespace: str
    principal: str
    broker: str
    state: OperationStatus
    begun_ms: int
    cancelled_by: str | None
    ended_ms: int | None
    status: int | None
    result: Any
    progress: dict[str, Any] | None


def operation_response(node: Node, operation: Operation) -> OperationResponse:
    """The operation as this broker knows it. Runs on any loop."""
    begun, cancelled, ended = operation.begun, operation.cancelled, operation.ended
    more = {
        "state": state_of(node, operation),
        "begun_ms": begun.at_ms,
        "cancelled_by": None if cancelled is None else cancelled.principal,
        "ended_ms": None if ended is None else ended.at_ms,
        "status": None if ended is None else ended.status,
        "result": None if ended is None else _parsed(ended.body),
        "progress": _progress(node, begun.about, begun.namespace),
    }
    return OperationResponse.model_validate(msgspec.structs.asdict(begun) | more)


def state_of(node: Node, operation: Operation) -> OperationStatus:
    """Its state, by the brokers that this broker knows."""
    if operation.ended is not None:
        return OperationStatus.DONE if operation.ended.status < 400 else OperationStatus.FAILED
    peer = node.membership.peers.get(BrokerId.parse(operation.begun.broker).name)
    if peer is None or str(peer.broker) != operation.begun.broker:
        return OperationStatus.LOST
    return OperationStatus.RUNNING if operation.state is OperationState.RUNNING else OperationStatus.CANCELLING


def _parsed(body: str | None) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError:
        return body


def _progress(node: Node, about: str, namespace: str) -> dict[str, Any] | None:
    table = node.channel.table
    if not namespace:
        return None
    if about == namespace:
        known = table.namespace(namespace)
        return {"bundles": 0 if known is None else known.count, "owned": table.count_held_in(namespace)}
    try:
        entry = table.get(Bundle.parse(about))
    except InvalidName:
        return None
    if entry is None:
        return {"state": None, "owner": None}
    return {"state": entry.state, "owner": None if entry.holder is None else entry.holder.name}


KEY_HEADER, PREFER_HEADER, ASYNC = "idempotency-key", "prefer", "respond-async"
REPLAYED = "Idempotency-Replayed"
KEPT_HEADERS = ("content-type", "location", "etag")
WAITED_S = 20.0
"""How long a repeated request waits for the first one."""

END_RETRY_S = 1.0
AT_ONCE = 256
"""So many operations may run at a broker at once: they go on without their clients, so no other limit counts them."""

_KEY = re.compile(r'"?([!#-~]{1,200})"?')
_log = logging.getLogger("loadmanager")

ATTEMPT: ContextVar[Attempt | None] = ContextVar("loadmanager.attempt", default=None)
"""What the present request asks for; None: neither of the two."""

ONE_BROKERS = re.compile(r"^/v1/groups/|/drain$")
"""Paths at which another broker may have to be asked (307): they are answered when that is known."""

Handle = Callable[[], Awaitable[Response]]


class _Known(Exception):
    """The request is that of an operation which is known already."""


class Attempts:
    """Work that goes on after its request was answered; of one broker's endpoints."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def check_room(self) -> None:
        """Raise Unavailable if as many run as may."""
        if len(self._tasks) >= AT_ONCE:
            raise Unavailable(f"{AT_ONCE} operations run at this broker already; try again, or at another one")

    def start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run it, whether its client waits or not."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # pyright: ignore[reportArgumentType]
        task.add_done_callback(self._tasks.discard)
        return task  # pyright: ignore[reportReturnType]

    async def close(self) -> None:
        """Cancel what runs."""
        self.closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Attempt:
    """One request with a key, or whose client does not wait. HTTPException for a key that is none."""

    def __init__(self, request: Request, sender: Sender, handover: Handover, attempts: Attempts) -> None:
        self._request = request
        self._sender = sender
        self._handover = handover
        self._attempts = attempts
        self._operation: Operation | None = None
        self._began = asyncio.Event()
        self._task: asyncio.Task[Response] | None = None
        self._loop = asyncio.get_running_loop()
        self._cancelled = False
        self._digest = ""
        at_once = _prefers_async(request.headers.getlist(PREFER_HEADER))
        self.waits = not at_once or ONE_BROKERS.search(request.url.path) is not None
        given = request.headers.get(KEY_HEADER)
        match = None if given is None else _KEY.fullmatch(given.strip())
        if given is not None and match is None:
            raise HTTPException(400, "Idempotency-Key is 1 to 200 visible characters, such as a UUID")
        self._id = None if match is None else id_of(sender.name, match[1])

    @property
    def wanted(self) -> bool:
        """Whether the request is to be an operation."""
        return self._id is not None or not self.waits

    async def carry_out(self, handle: Handle) -> Response:
        """The answer of the request: of this one, or of the one before it with the same key."""
        url = self._request.url
        body = (await self._request.body()).decode("latin-1")
        conditions = [self._request.headers.get(name) for name in ("if-match", "if-none-match")]
        self._digest = digest_of(self._request.method, url.path, url.query, body, conditions)
        ATTEMPT.set(self)
        while True:
            self._attempts.check_room()
            self._task = self._attempts.start(self._once(handle))
            began = asyncio.ensure_future(self._began.wait())
            try:
                await asyncio.wait(
                    {self._task, began} if not self.waits else {self._task}, return_when="FIRST_COMPLETED"
                )
            finally:
                began.cancel()
            if not self.waits and self._operation is not None:
                return self._accepted(self._operation)
            try:
                return await asyncio.shield(self._task)
            except _Known:
                found = await self._answer_of_the_first()
                if found is not None:
                    return found

    async def begin(self, action: str, given: Mapping[str, Any]) -> None:
        """Begin the operation, after the request was found valid and before it changes anything.

        Raises _Known if it is known already; LogUnavailable, Unavailable.
        """
        found = await self._handover.ask(lambda: self._begin(self._handover.node, action, given))
        if found is None:
            raise _Known
        self._operation = found
        self._began.set()

    async def _begin(self, node: Node, action: str, given: Mapping[str, Any]) -> Operation | None:
        thing = about(node, action, given)
        return await node.operation_log.begin(
            self._id,
            self._sender.name,
            action,
            redact_and_shorten(thing.name),
            thing.namespace,
            self._digest,
            str(node.current.me),
            self._cancel_from_control,
        )

    def _cancel_from_control(self) -> None:
        with suppress(RuntimeError):  # the endpoints' loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def _once(self, handle: Handle) -> Response:
        kept = True
        try:
            response = await handle()
        except asyncio.CancelledError:
            if self._operation is None:
                raise
            why = "it was cancelled" if self._cancelled else "this broker ended before it was done"
            response = respond(problem(409, f"{why}; it may have been carried out in part: look at it"))
        except Exception as error:
            if self._operation is None:
                raise
            found = problem_of(error)
            if found.status == 500:
                _log.exception("operation %s failed", self._operation.id)
            # with these it may have changed something: then it is not tried again
            may_be_done = found.status == 500 or found.record_id is not None
            response, kept = respond(found), not self.waits or may_be_done
        if self._operation is not None:
            dropped = response.status_code == 307 or not kept
            ending = self._attempts.start(self._end(self._operation, response, drop=dropped))
            await asyncio.wait({ending}, timeout=WAITED_S)
        return response

    async def _end(self, operation: Operation, response: Response, *, drop: bool) -> None:
        log = self._handover.node.operation_log
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        status, body = response.status_code, bytes(response.body).decode("utf-8", "replace")
        while True:
            try:
                if drop:
                    await self._handover.ask(lambda: log.drop(operation))
                else:
                    await self._handover.ask(lambda: log.end(operation, status, headers, body))
            except (LogUnavailable, Unavailable) as error:
                _log.warning("the end of operation %s is not in the log yet: %s", operation.id, error)
                if self._attempts.closed:
                    return
                await asyncio.sleep(END_RETRY_S)
            else:
                return

    def _accepted(self, operation: Operation) -> Response:
        headers = {"Location": f"/v1/operations/{operation.id}", "Preference-Applied": ASYNC}
        body = msgspec.json.encode(operation_response(self._handover.node, operation).model_dump())
        return Response(body, 202, headers, "application/json")

    async def _answer_of_the_first(self) -> Response | None:
        """The answer to the same request that came first; None if that was dropped, so that this one is to be done."""
        assert self._id is not None
        node, found_id = self._handover.node, self._id
        timeout_s = WAITED_S if self.waits else 0.0
        found = await self._handover.ask(lambda: node.operation_log.ended(found_id, timeout_s))
        if found is None:
            return None
        if found.begun.request != self._digest:
            said = "another request was sent with this Idempotency-Key; use a key for one request only"
            return respond(problem(422, said))
        if not self.waits:
            return self._accepted(found)
        if found.ended is not None:
            return _again(found)
        if state_of(node, found) is OperationStatus.LOST:
            said = (
                f"operation {found.id} was of a broker that is gone, and may have been carried out in part: look at "
                f"{found.begun.about or 'it'}, then send what is left to do with another key"
            )
            return respond(problem(422, said))
        return respond(
            problem(503, f"operation {found.id} is still {found.state} at {found.begun.broker}", retry_after_s=5.0)
        )


def _again(found: Operation) -> Response:
    assert found.ended is not None
    if found.ended.body is None:
        said = f"operation {found.id} was answered with {found.ended.status}, which was too long to be kept: look at "
        return respond(problem(422, f"{said}{found.begun.about or 'it'}"))
    return Response(found.ended.body, found.ended.status, {**found.ended.headers, REPLAYED: "true"})


def _prefers_async(given: list[str]) -> bool:
    return any(each.strip().lower() == ASYNC for header in given for each in re.split("[,;]", header))


def attempt_of(request: Request, sender: Sender, handover: Handover, attempts: Attempts) -> Attempt | None:
    """What the request asks for; None if neither for a key nor for an answer at once. Raises HTTPException."""
    headers = request.headers
    if KEY_HEADER not in headers and PREFER_HEADER not in headers:
        return None
    found = Attempt(request, sender, handover, attempts)
    return found if found.wanted else None
