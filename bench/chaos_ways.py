"""The ways of members to Kafka and to coordinators: proxies on the loopback that can be cut, on a thread of their own.

Kafka has a listener for each member that is advertised at the member's proxy, and coordinators are behind a proxy for
each member and broker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

from tests.faults import Cut, TcpProxy


class Ways:
    """`proxies` of each member, which listen while the block runs."""

    def __init__(self, proxies: Mapping[int, list[TcpProxy]]) -> None:
        self._proxies = proxies
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways")

    def __enter__(self) -> Ways:
        self._thread.start()
        self._each(TcpProxy.start)
        return self

    def __exit__(self, *_: object) -> None:
        self._each(TcpProxy.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, member: int) -> None:
        """Nothing passes in either direction, and connections stay open."""
        for proxy in self._proxies[member]:
            self._loop.call_soon_threadsafe(proxy.cut, Cut.BLACKHOLE)

    def heal(self, member: int) -> None:
        """All passes again, also what was held back."""
        for proxy in self._proxies[member]:
            self._loop.call_soon_threadsafe(proxy.heal)

    def _each(self, do: Callable[[TcpProxy], Awaitable[None]]) -> None:
        async def all_of_them() -> None:
            for proxies in self._proxies.values():
                for proxy in proxies:
                    await do(proxy)

        asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(30)
