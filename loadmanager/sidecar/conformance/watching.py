"""Notes what a service asks, before the endpoints judge it: an ASGI application around theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_KEPT = 200


class Watch:
    """The last requests with their statuses, and how many polls were open at once."""

    def __init__(self) -> None:
        self.requests = deque[str](maxlen=_KEPT)
        """Such as `POST /v1/session: 401`."""
        self.refused_secrets = 0
        """Requests that were answered 401."""
        self.most_polls = 0
        self._polls = 0

    def around(self, application: Application) -> Application:
        """The application, watched."""

        async def watched(scope: Message, receive: Receive, send: Send) -> None:
            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.requests.append(f"{scope['method']} {scope['path']}: {message['status']}")
                    self.refused_secrets += message["status"] == 401
                elif scope["path"] == "/v1/session" and scope["method"] == "POST" and b"detail" in message["body"]:
                    self.requests[-1] += f" {message['body'].decode()}"
                await send(message)

            if scope["type"] != "http" or not scope["path"].endswith("/lease"):
                await application(scope, receive, noted)
                return
            self._polls += 1
            self.most_polls = max(self.most_polls, self._polls)
            try:
                await application(scope, receive, noted)
            finally:
                self._polls -= 1

        return watched
