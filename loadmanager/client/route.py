"""A client's cache: the owner of each range of each namespace, so that one lookup serves all keys of a bundle.

Also the highest fencing token seen for each key; by key and not by range, so that a split does not lose it. Bounded;
sends no request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from statechannel.law.bundle import Bundle, parse_key
from statechannel.law.record import Token

TOPICS_KEPT = 100_000


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where a key is served. `urls` are the service's, by protocol; `token` is None in a route from a `Moved`."""

    bundle: Bundle
    broker: str
    urls: Mapping[str, str]
    token: Token | None = None

    def url(self, protocol: str) -> str:
        """The owner's URL for this protocol, "" if it registered none."""
        return self.urls.get(protocol, "")


class Span:
    """One bundle's range in the cache. Cached keys refer to it; `route` is None while the owner is unknown."""

    __slots__ = ("bundle", "route", "token")

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.route: Route | None = None
        self.token: Token | None = None


class RouteTable:
    """The cached routes. Not thread-safe."""

    def __init__(self, topics_kept: int = TOPICS_KEPT) -> None:
        self._topics_kept = topics_kept
        self._by_topic: dict[str, Span] = {}
        self._spans: dict[str, list[Span]] = {}

    def cached(self, topic: str) -> Route | None:
        """The route of a key, None if it is unknown. A dictionary look-up for keys asked for before."""
        span = self._by_topic.get(topic)
        if span is not None and span.route is not None:
            return span.route
        span = self.span(topic)
        return None if span is None else span.route

    def span(self, topic: str) -> Span | None:
        """The cached range that a key falls into, whether or not its owner is known. Raises InvalidName."""
        parsed = parse_key(topic)
        spans = self._spans.get(parsed.namespace)
        if not spans:
            return None
        index = bisect_right(spans, parsed.position, key=_lower) - 1
        if index < 0 or parsed.position not in spans[index].bundle:
            return None
        if len(self._by_topic) >= self._topics_kept:
            self._by_topic.clear()
        self._by_topic[topic] = spans[index]
        return spans[index]

    def learn(self, route: Route) -> bool:
        """Cache a route; False if it is older than the known one of its range, and is ignored."""
        span = self._span_for(route.bundle)
        if route.token is not None and span.token is not None and route.token < span.token:
            return False
        span.route = route
        span.token = route.token or span.token
        return True

    def forget(self, route: Route) -> None:
        """Drop a route that failed. A route that was learned meanwhile stays."""
        for span in self._spans.get(route.bundle.namespace, ()):
            if span.route is route:
                span.route = None

    def _span_for(self, bundle: Bundle) -> Span:
        """The span of exactly this range; drops overlapping spans, which are older than a split or merge."""
        spans = self._spans.setdefault(bundle.namespace, [])
        begin = bisect_right(spans, bundle.lo, key=_lower) - 1
        if begin >= 0 and spans[begin].bundle == bundle:
            return spans[begin]
        if begin < 0 or spans[begin].bundle.hi <= bundle.lo:
            begin += 1
        end = bisect_left(spans, bundle.hi, key=_lower)
        for old in spans[begin:end]:
            old.route = None
        span = Span(bundle)
        spans[begin:end] = [span]
        return span


class SeenTokens:
    """The highest token seen in answers, for the keys used last."""

    def __init__(self, kept: int = TOPICS_KEPT) -> None:
        self._kept = kept
        self._highest: OrderedDict[str, Token] = OrderedDict()

    def accept(self, key: str, token: Token) -> bool:
        """Whether to accept an answer with this token: no answer for this key had a newer one."""
        highest = self._highest.get(key)
        if highest is not None and token < highest:
            return False
        self._highest[key] = token
        self._highest.move_to_end(key)
        if len(self._highest) > self._kept:
            self._highest.popitem(last=False)
        return True


def _lower(span: Span) -> int:
    return span.bundle.lo
