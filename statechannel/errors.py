"""The tree of errors. A record that the law refuses is a value (`verdict.Refusal`), never an exception.

StateChannelError
├── InvalidName           a bundle, namespace, key, range or broker name that does not parse
├── InvariantError        our own core broke its law: a bug, never to be caught and ignored
├── CorruptRecord         bytes in the log that are not our record: readers skip and count them
├── NewerRecord           a record written by a newer release: the replica stops rather than misread it
├── NeedsNewerFormat      a record that the cluster's write format cannot carry yet: upgrade the other brokers first
├── BadSnapshot           a snapshot that is missing, truncated, damaged or foreign: refused, an operator must act
├── LogRetired            the channel was moved to another log: start with the new address
├── LogError
│   ├── LogUnavailable    the log did not answer in time, or cannot take writes now: retry with back-off
│   ├── RecordTooLarge    the payload exceeds what the log takes: nothing was written
│   ├── Trimmed           the offset asked for was trimmed: start from a snapshot
│   ├── WriterFenced      another client is the exclusive writer of this id now: stop writing
│   └── TopicMismatch     an existing topic has settings that would break the protocol: an operator must act
├── CoordinationError
│   ├── CoordinationUnavailable   no answer, or the session is suspended or lost: retry with back-off
│   │   └── RootLost      the data of our coordination root is gone: treated as no answer until an operator acts
│   ├── ForeignRoot       another coordination root is in the place of ours: stop, an operator must act
│   ├── NameTaken         another process runs under our name: this one ends, an operator must act
│   ├── Fenced            this incarnation is not the current one any more: stop, start a new incarnation
│   └── Deposed           this leader's epoch is not the current one any more: stop leading
└── ForeignCluster        log, coordination and settings do not name the same cluster: an operator must act
"""

from __future__ import annotations


class Error(Exception):
    """Root of everything that this product raises on purpose: `StateChannelError`, and `loadmanager.errors`."""

    said_by: str = ""
    """In a client: name or admin URL of the broker that answered with this error; "" if this process raised it."""


class StateChannelError(Error):
    """Root of everything this package raises on purpose."""


class InvalidName(StateChannelError, ValueError):
    """A name does not parse; the message shows the form that is expected."""


class InvariantError(StateChannelError):
    """Our own core produced something that its law forbids."""


class CorruptRecord(StateChannelError):
    """The bytes at this offset are not a record of this format."""


class NewerRecord(StateChannelError):
    """The record is intact, but this release cannot read its format version; upgrade this process."""


class NeedsNewerFormat(StateChannelError):
    """The format in which the cluster writes at present cannot carry this record; nothing was written."""


class BadSnapshot(StateChannelError):
    """The snapshot that is needed is missing, incomplete, damaged, or belongs to another log. It was not used."""


class LogRetired(StateChannelError):
    """The log was closed for good because the channel was moved to another one."""


class LogError(StateChannelError):
    """Anything about the log."""


class LogUnavailable(LogError):
    """The log did not answer within its time-out, or refuses writes at present (full disk, too few replicas)."""


class TopicUnknown(LogError):
    """The log's servers do not know a topic: it is gone, or one of them has just started."""


class RecordTooLarge(LogError):
    """The payload is larger than the log accepts; nothing was written."""


class Trimmed(LogError):
    """The log no longer has the offset that was asked for; a snapshot covers it."""


class WriterFenced(LogError):
    """Another client became the exclusive writer of the same id; nothing was written."""


class TopicMismatch(LogError):
    """A topic exists with a cleanup policy or partition count that would break the protocol."""


class CoordinationError(StateChannelError):
    """Anything about liveness, incarnations and elections."""


class CoordinationUnavailable(CoordinationError):
    """The coordination service did not answer, or the session is suspended or lost."""


class RootLost(CoordinationUnavailable):
    """The data of our coordination root was deleted. It gives no proof, and no incarnation can be raised in it."""


class ForeignRoot(CoordinationError):
    """Another coordination root is in the place of ours."""


class NameTaken(CoordinationError):
    """Another process started under the same advertised name and fenced this one."""


class Fenced(CoordinationError):
    """The incarnation that asked is not the current one of its name."""


class Deposed(CoordinationError):
    """The epoch that asked is not the current one."""


class ForeignCluster(StateChannelError):
    """Settings, log and coordination service belong to different clusters."""
