"""What a service tells a client that asks in the wrong place, as exceptions and as HTTP.

The contract, for any HTTP service that wants its clients to follow planned moves (`loadmanager.client.HttpRouter` is
the other half):

* **421 Misdirected Request**, `application/problem+json`, `"type": "urn:loadmanager:moved"`, with `broker` (the
  owner's advertised name), `urls` (what it registered, by protocol), and `bundle` if known: nothing was
  done, ask there.
* **503 Service Unavailable** with `Retry-After` (seconds) and `"type": "urn:loadmanager:not-serving"`: nothing was
  done, nobody serves this key at the moment, look it up again.
* any answer may carry `Fencing-Token`: the token under which it was given. A client refuses one that is older than one
  it has seen for the same key.

`problem_of` writes such an answer, `error_of` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.errors import LoadManagerError, Unavailable
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

PROBLEM_TYPE = "application/problem+json"
TOKEN_HEADER = "Fencing-Token"
MOVED = "urn:loadmanager:moved"
NOT_SERVING = "urn:loadmanager:not-serving"


class Moved(LoadManagerError):
    """Another broker serves this, or is about to and holds requests: ask there. Without `urls`, look it up."""

    def __init__(self, broker: str, urls: Mapping[str, str], bundle: Bundle | None = None) -> None:
        super().__init__(f"{bundle or 'this key'} is served by {broker}")
        self.broker = broker
        self.urls = urls
        self.bundle = bundle


class NotServing(Unavailable):
    """Nobody serves this at the moment, as far as is known here: look it up again after `retry_after_s`."""


class Problem(msgspec.Struct, omit_defaults=True):
    """The body of a 421 or 503 (RFC 9457)."""

    type: str
    title: str = ""
    detail: str = ""
    status: int = 0
    broker: str = ""
    urls: dict[str, str] = {}
    bundle: str = ""


def problem_of(error: Moved | NotServing) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer that says so."""
    headers = {"Content-Type": PROBLEM_TYPE}
    if isinstance(error, Moved):
        bundle = str(error.bundle) if error.bundle else ""
        problem = Problem(MOVED, str(error), "", 421, error.broker, dict(error.urls), bundle)
    else:
        headers["Retry-After"] = f"{max(1, round(error.retry_after_s))}"
        problem = Problem(NOT_SERVING, str(error), "", 503)
    return problem.status, headers, msgspec.json.encode(problem)


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> Moved | NotServing | None:
    """What the answer says; None if it is an ordinary one. A 503 of any kind counts as NotServing."""
    if status == 421:
        try:
            problem = msgspec.json.decode(body, type=Problem)
            bundle = Bundle.parse(problem.bundle) if problem.bundle else None
        except (msgspec.MsgspecError, InvalidName):
            return None
        return Moved(problem.broker, problem.urls, bundle) if problem.type == MOVED else None
    if status == 503:
        return NotServing(_reason(body) or "the service answered 503", retry_after_s(headers))
    return None


def _reason(body: bytes) -> str:
    """What a problem of whatever type says of itself; "" if the body is none."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return ""
    return problem.detail or problem.title


def retry_after_s(headers: Mapping[str, str]) -> float:
    """The Retry-After of an answer in seconds, 1 if there is none that reads as a number."""
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
