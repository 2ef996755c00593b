"""Health, readiness and life of a broker, answered beside FastAPI, which a starting broker has not loaded yet."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse

from loadmanager.broker.node import Incarnation, Node
from loadmanager.errors import Unavailable
from loadmanager_api.access.access import Access
from loadmanager_api.problems import problem_of, respond


def acting(node: Node) -> Incarnation:
    """The incarnation that is registered and acts. Raises Unavailable."""
    if not node.ready.is_set():
        raise Unavailable("this broker is starting, was fenced and restarts, or is leaving; try again or elsewhere")
    return node.current


def check_health(node: Node) -> None:
    """Raise Unavailable unless the broker is registered and its proofs are fresh, so that it could serve now."""
    acting(node)
    if not _proved(node):
        raise Unavailable("no fresh proof: neither the coordination service nor the channel answers this broker")
    if node.channel.stopped_by is not None:
        raise Unavailable(f"the replica has stopped: {node.channel.stopped_by}")


def _proved(node: Node) -> bool:
    """Every partition in which this broker claims bundles; any partition if there are no claims."""
    assert node.serving is not None
    now_s = node.proof_clock.now_s()
    fresh = [now_s < until_s for until_s in node.serving.until_s()]
    claimed = {claim.token.partition for claim in node.serving.claims()}
    return all(fresh[partition] for partition in claimed) if claimed else any(fresh)


def check_ready(node: Node) -> None:
    """Raise Unavailable unless the broker is registered and acts."""
    acting(node)


def check_live(node: Node) -> None:
    """Raise Unavailable unless the control loop turns, whatever log and coordination do."""
    still_s = node.seen.turns.still_s
    if still_s >= node.settings.session_timeout_s:
        raise Unavailable(f"the control loop has not turned for {still_s:.0f} s")


CHECKS = {
    "/admin/v2/brokers/health": check_health,
    "/admin/v2/brokers/live": check_live,
    "/admin/v2/brokers/ready": check_ready,
}


class Probes:
    """An ASGI application that answers GET of these paths, and gives everything else to `app`.

    With authentication, the broker is ready once `access` is too.
    """

    def __init__(self, node: Node, app: Any, access: Access | None = None) -> None:
        self._node = node
        self._access = access
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        check = CHECKS.get(scope["path"]) if scope["method"] == "GET" else None
        if check is None:
            await self._app(scope, receive, send)
            return
        try:
            check(self._node)
            if check is check_ready and self._access is not None:
                self._access.check_ready()
            answer = PlainTextResponse("ok")
        except Unavailable as error:
            answer = respond(problem_of(error))
        await answer(scope, receive, send)
