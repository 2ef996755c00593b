"""How a service sends a client to the owner: as exceptions and over HTTP.

The contract for any HTTP service whose clients follow planned moves (`loadmanager.client.HttpRouter` is the client's
half):

* **421 Misdirected Request**, `application/problem+json`, `"type": "urn:loadmanager:moved"`, with `broker` (the
  owner's advertised name), `urls` (its registered URLs, by protocol), and `bundle` if known: nothing was done, ask
  the owner.
* **503 Service Unavailable** with `Retry-After` (seconds) and `"type": "urn:loadmanager:not-serving"`: nothing was
  done, no broker serves this key at the moment, look it up again.
* **421** with `"type": "urn:loadmanager:another-cluster"`: nothing was done, the request is for another cluster. Look
  the key up again.
* A request has `Loadmanager-Cluster`, the cluster of its client, and the answers above have that of the service.
* Any answer may have `Fencing-Token`, the token of the owner that gave it. A client refuses an answer with an older
  token than it has seen for the same key.

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
CLUSTER_HEADER = "Loadmanager-Cluster"
MOVED = "urn:loadmanager:moved"
NOT_SERVING = "urn:loadmanager:not-serving"
ANOTHER_CLUSTER = "urn:loadmanager:another-cluster"


class Moved(LoadManagerError):
    """Another broker serves this key, or soon will and holds requests: ask there. Without `urls`, look it up."""

    def __init__(self, broker: str, urls: Mapping[str, str], bundle: Bundle | None = None) -> None:
        super().__init__(f"{bundle or 'this key'} is served by {broker}")
        self.broker = broker
        self.urls = urls
        self.bundle = bundle
        self.cluster = ""
        """The cluster of the broker that says so, as `Loadmanager-Cluster`."""


class NotServing(Unavailable):
    """No broker serves this key now, as far as is known here. Look it up again after `retry_after_s`."""

    cluster = ""
    """The cluster of the broker that says so, as `Loadmanager-Cluster`."""


class AnotherCluster(NotServing):
    """The request is for another cluster than the one that got it, or the answer is another cluster's.

    `cluster` is "" if the answer does not say whose it is.
    """

    def __init__(self, message: str, cluster: str) -> None:
        super().__init__(message, 0.1)
        self.cluster = cluster


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
    """Status, headers and body of the answer for this error."""
    headers = {"Content-Type": PROBLEM_TYPE}
    if error.cluster:
        headers[CLUSTER_HEADER] = error.cluster
    if isinstance(error, AnotherCluster):
        problem = Problem(ANOTHER_CLUSTER, str(error), "", 421)
    elif isinstance(error, Moved):
        bundle = str(error.bundle) if error.bundle else ""
        problem = Problem(MOVED, str(error), "", 421, error.broker, dict(error.urls), bundle)
    else:
        headers["Retry-After"] = f"{max(1, round(error.retry_after_s))}"
        problem = Problem(NOT_SERVING, str(error), "", 503)
    return problem.status, headers, msgspec.json.encode(problem)


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> Moved | NotServing | None:
    """The error in an answer; None if it is an ordinary answer. Any 503 counts as NotServing."""
    if status == 421:
        try:
            problem = msgspec.json.decode(body, type=Problem)
            bundle = Bundle.parse(problem.bundle) if problem.bundle else None
        except (msgspec.MsgspecError, InvalidName):
            return None
        if problem.type == ANOTHER_CLUSTER:
            return AnotherCluster(problem.title, headers.get(CLUSTER_HEADER, ""))
        return Moved(problem.broker, problem.urls, bundle) if problem.type == MOVED else None
    if status == 503:
        return NotServing(error_detail(body) or "the service answered 503", retry_after_s(headers))
    return None


def error_detail(body: bytes) -> str:
    """The text of a problem of any type; "" if the body is not a problem document."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return ""
    return problem.detail or problem.title


def retry_after_s(headers: Mapping[str, str]) -> float:
    """The Retry-After of an answer in seconds; 1 if it is missing or not a number."""
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
