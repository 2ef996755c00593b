"""The audit of the channel: replays its whole log in parallel and checks every invariant.

It also compares snapshots and the lakehouse's own records with the replay.

    found = audit(raw_channel, partitions, snapshots=…, states=…, silver=Silver(channel, transition))
    found.violations, found.summary    # DataFrames; `found.close()` when you are done

It trusts only the log and, where the log was trimmed, the oldest snapshot. `promises.py` and `steps.py` know what was
promised, but not how the law keeps it; `segments.py` cuts one partition into segments that are audited in parallel.
"""

from loadmanager.history.audit.auditing import Audit, Silver, audit
from loadmanager.history.audit.findings import SUMMARY, VIOLATION, Invariant

__all__ = ["SUMMARY", "VIOLATION", "Audit", "Invariant", "Silver", "audit"]
