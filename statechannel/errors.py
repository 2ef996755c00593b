"""What can go wrong, as one tree. A record that the law refuses is a value (`table.Refusal`), never an exception.

StateChannelError
├── InvalidName           a bundle, namespace, topic, range or broker name that does not parse
├── InvariantError        our own core broke its law: a bug, never to be caught and ignored
├── CorruptRecord         bytes in the log that are no record of ours: skipped and counted by readers
├── NewerRecord           a record written by a newer release: the replica stops rather than mis-read it
├── NeedsNewerFormat      a record that the agreed format cannot carry yet: upgrade the other brokers first
├── BadSnapshot           a snapshot that is missing, truncated, damaged or foreign: refused, an operator must act
├── LogRetired            this log was moved elsewhere: start with the new address
├── LogError
│   ├── LogUnavailable    the log did not answer in time, or cannot take writes now: retry with back-off
│   ├── RecordTooLarge    the payload exceeds what the log takes: nothing was written
│   ├── Trimmed           the offset asked for was trimmed: start from a snapshot
│   ├── WriterFenced      somebody else is the exclusive writer of this id now: stop writing
│   └── TopicMismatch     an existing topic has settings that would break the protocol: an operator must act
├── CoordinationError
│   ├── CoordinationUnavailable   no answer, or the session is suspended or lost: retry with back-off
│   │   └── RootLost      the data of our coordination root is gone: as if it did not answer, until an operator acts
│   ├── ForeignRoot       another coordination root stands in the place of ours: stop, an operator must act
│   ├── NameTaken         another process runs under our name: this one ends, an operator must act
│   ├── Fenced            this incarnation is not the current one any more: stop, start a new incarnation
│   └── Deposed           this leader's epoch is not the current one any more: stop leading
└── ForeignCluster        log, coordination and settings do not name the same cluster: an operator must act
"""

from __future__ import annotations


class Error(Exception):
    """Root of everything that this product raises on purpose: `StateChannelError`, and `loadmanager.errors`."""

    said_by: str = ""
    """In a client: the broker that said so, by name or admin URL; "" where it was said here."""


class StateChannelError(Error):
    """Root of everything this package raises on purpose."""


class InvalidName(StateChannelError, ValueError):
    """A name does not parse; the message shows the form that is expected."""


class InvariantError(StateChannelError):
    """Our own core produced something that its law forbids."""


class CorruptRecord(StateChannelError):
    """The bytes at this offset are not a record of this format."""


class NewerRecord(StateChannelError):
    """The record is intact but of a format version that this release cannot read; upgrade this process."""


class NeedsNewerFormat(StateChannelError):
    """The record has what the format in which the cluster writes at present cannot carry; nothing was written."""


class BadSnapshot(StateChannelError):
    """The snapshot that is needed is missing, incomplete, damaged, or belongs to another log. It was not used."""


class LogRetired(StateChannelError):
    """The log was closed for good because the channel was moved to another one."""


class LogError(StateChannelError):
    """Anything about the log."""


class LogUnavailable(LogError):
    """The log did not answer within its time-out, or refuses writes at present (full disk, too few replicas)."""


class RecordTooLarge(LogError):
    """The payload is larger than the log accepts; nothing was written."""


class Trimmed(LogError):
    """The log no longer has the offset that was asked for; what it said stands in a snapshot."""


class WriterFenced(LogError):
    """Somebody else became the exclusive writer of the same id; nothing was written."""


class TopicMismatch(LogError):
    """A topic exists with a cleanup policy or partition count that would break the protocol."""


class CoordinationError(StateChannelError):
    """Anything about liveness, incarnations and elections."""


class CoordinationUnavailable(CoordinationError):
    """The coordination service did not answer, or the session is suspended or lost."""


class RootLost(CoordinationUnavailable):
    """What stood in our coordination root was deleted. It gives no proof, and nobody can be raised in it."""


class ForeignRoot(CoordinationError):
    """Where our coordination root was there is another one now."""


class NameTaken(CoordinationError):
    """Another process was started under the same advertised name, and fenced this one."""


class Fenced(CoordinationError):
    """The incarnation that asked is not the current one of its name."""


class Deposed(CoordinationError):
    """The epoch that asked is not the current one."""


class ForeignCluster(StateChannelError):
    """Settings, log and coordination service belong to different clusters."""
