"""A kazoo handler with short waits: no single answer uses up a session, and a failed TLS handshake leaks no socket."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class PromptHandler(SequentialThreadingHandler):
    """kazoo's threads, with a bound on waiting for one answer.

    kazoo waits a whole session time-out for a server to accept a connection and to answer the first message. A server
    that has just restarted may never answer, and the session would expire meanwhile.
    """

    def __init__(self, answer_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls
        self._answer_timeout_s = answer_timeout_s
        self.trouble = ""
        """Why the last attempt to connect failed, for messages."""

    def select(self, *arguments: Any, **named: Any) -> Any:
        """Bound waits for a single socket, which are for (the rest of) a message; the main loop waits for two."""
        if len(arguments) == 4 and len(arguments[0]) + len(arguments[1]) == 1 and arguments[3] is not None:
            arguments = (*arguments[:3], min(arguments[3], self._answer_timeout_s))
        return super().select(*arguments, **named)

    def create_connection(self, *arguments: Any, **named: Any) -> Any:
        """Connect, within the answer time-out."""
        named["timeout"] = min(named.get("timeout") or self._answer_timeout_s, self._answer_timeout_s)
        try:
            connection = self._secured(**named) if self._tls else super().create_connection(*arguments, **named)
        except Exception as error:
            self.trouble = (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
            raise
        self.trouble = ""
        return connection

    def _secured(self, address: tuple[str, int], hostname: str, timeout: float, **_files: Any) -> socket.socket:
        """As kazoo, but closes the socket on failure, and uses the TLS files read at the start."""
        assert self._tls is not None
        plain = socket.create_connection(address, timeout=timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise
