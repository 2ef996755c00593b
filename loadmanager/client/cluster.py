"""Which cluster a broker, a service and a client belong to, so that no request reaches another one.

Addresses are reused: where a broker died, one of another cluster may start. So every answer of a broker has the
header `Loadmanager-Cluster`, `NAME/IDENTITY/GENERATION` of its log, and a client sends it with its requests. The
identity is random, made with the log. A cluster that was moved to a new log has a new identity, the same name and a
higher generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from loadmanager.client.redirection import CLUSTER_HEADER, AnotherCluster
from loadmanager.errors import Invalid
from statechannel.law.partition import ClusterIdentity

HEADER_BYTES = 1_024
WHO = "/admin/v2/brokers/live"
"""A path that every broker answers without credentials, with its cluster."""


def header_of(cluster: ClusterIdentity) -> str:
    """The header's value. A name alone (generation -1) stands for every cluster of that name."""
    name = quote(cluster.cluster, safe="")
    return name if cluster.generation < 0 else f"{name}/{quote(cluster.identity, safe='')}/{cluster.generation}"


def cluster_in(text: str) -> ClusterIdentity | None:
    """The cluster that a header's value names, as `header_of`; None if it cannot be read."""
    parts = text.split("/")
    if len(text) > HEADER_BYTES or not text.isascii() or not all(parts):
        return None
    if len(parts) == 1:
        return ClusterIdentity(unquote(text), "", -1)
    if len(parts) != 3 or not parts[2].isdecimal() or len(parts[2]) > 9:
        return None
    return ClusterIdentity(unquote(parts[0]), unquote(parts[1]), int(parts[2]))


def continues(now: ClusterIdentity, before: ClusterIdentity) -> bool:
    """Returns True if `now` is the cluster `before`, perhaps in a later log."""
    return now == before or (now.cluster == before.cluster and now.generation > before.generation)


def check_request(own: ClusterIdentity | None, text: str | None) -> None:
    """Check the header of a request. Raises AnotherCluster, which names both, if it is for another cluster.

    A request without the header is for any cluster; a broker that does not know its own yet (None) answers nothing.
    """
    if text is None or own is None:
        return
    wanted = cluster_in(text)
    if wanted is None or not continues(own, wanted):
        raise AnotherCluster(
            f"this is cluster {header_of(own)}, and the request is for cluster {text[:200]!r}", header_of(own)
        )


class Pin:
    """The one cluster of a client: the given one, or the first whose broker answers.

    Brokers tell the client when its cluster continues in a later log. Services only have to be of the same cluster.
    """

    def __init__(self, cluster: str = "") -> None:
        """`cluster` is a name, or a whole value of the header. Raises Invalid."""
        self.cluster: ClusterIdentity | None = None
        if cluster:
            self.cluster = cluster_in(cluster if "/" in cluster else quote(cluster))
            if self.cluster is None:
                raise Invalid(f"{cluster!r} is not a cluster: give NAME or NAME/IDENTITY/GENERATION")

    def headers(self) -> dict[str, str]:
        """The header for a request; none while nothing is pinned."""
        return {} if self.cluster is None else {CLUSTER_HEADER: header_of(self.cluster)}

    def take(self, headers: Mapping[str, str], said_by: str) -> None:
        """Check a broker's answer, and pin its cluster. Raises AnotherCluster."""
        self.cluster = self.check(headers, said_by) or self.cluster

    def check(self, headers: Mapping[str, str], said_by: str) -> ClusterIdentity | None:
        """Check an answer. Returns the cluster that it names. Raises AnotherCluster, which names both.

        An answer without the header passes: its service does not know the header, or is of an earlier release.
        """
        text = headers.get(CLUSTER_HEADER)
        if text is None:
            return None
        said = cluster_in(text)
        if self.cluster is not None and (said is None or not continues(said, self.cluster)):
            raise AnotherCluster(
                f"{said_by} belongs to cluster {text[:200]!r}, not to {header_of(self.cluster)}", text[:200]
            )
        return said

    def named(self, headers: Mapping[str, str], said_by: str) -> ClusterIdentity:
        """As `check`, for an address that is to get credentials. Raises AnotherCluster, too, if it names no cluster."""
        said = self.check(headers, said_by)
        if said is None:
            raise AnotherCluster(f"{said_by} names no cluster, so no credentials are sent to it", "")
        return said
