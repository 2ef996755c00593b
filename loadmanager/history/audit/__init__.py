"""The audit of the channel: replays its whole log in parallel and checks every invariant.

It also compares snapshots and the lakehouse's own records with the replay.

    found = audit(raw_channel, partitions, snapshots=…, states=…, silver=Silver(channel, transition))
    found.violations, found.summary    # DataFrames; `found.close()` when you are done

It trusts only the log and, where the log was trimmed, the oldest snapshot. The judge is `loadmanager.channel.audit`;
`segments.py` cuts one partition into segments that are audited in parallel.
"""

from loadmanager.channel.audit.auditor import Invariant
from loadmanager.history.audit.auditing import Audit, Silver, audit
from loadmanager.history.audit.findings import SUMMARY, VIOLATION

__all__ = ["SUMMARY", "VIOLATION", "Audit", "Invariant", "Silver", "audit"]
