"""The audit of the channel: its whole log replayed in parallel, every invariant checked, snapshots and the lakehouse's
own records held against the replay.

    found = audit(raw_channel, partitions, snapshots=…, states=…, silver=Silver(channel, transition))
    found.violations, found.summary    # DataFrames; `found.close()` when you are done

Believes nothing but the log, and where that was trimmed the oldest snapshot. `promises.py` and `steps.py` know what was
promised and nothing of how the law keeps it; `segments.py` says how one partition is cut, so that it is parallel too.
"""

from loadmanager.history.audit.auditing import Audit, Silver, audit
from loadmanager.history.audit.findings import SUMMARY, VIOLATION, Invariant

__all__ = ["SUMMARY", "VIOLATION", "Audit", "Invariant", "Silver", "audit"]
