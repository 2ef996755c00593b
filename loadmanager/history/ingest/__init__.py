"""Ingests the topics into the lake, each record once: bronze as in the log, silver decoded, gold per minute.

    Ingest(lake, source, options).run_available()      what there is now
    Ingest(lake, source, options).run(stop)            what there is and what comes, until the event is set
    refresh_gold(lake, load_ttl_s)                     minutes, recomputed where silver has changed
    settled_states(lake)                               the channel's state behind each complete batch

A batch is four steps, each one commit of a table or several, each effective once however often it runs:

    bronze ─▶ quarantine ─▶ silver tables and the replay's state ─▶ progress          (then Spark's checkpoint)

What a run finds after one that was killed, and what it does:

* killed before bronze's commit: the lake has nothing of the batch, at most files that no commit names (`maintain`
deletes them). Spark gives the same offsets again, or more; they are new.
* killed between bronze and progress: bronze has records behind `progress`. The run repeats everything after bronze from
bronze's rows: commits with a known number are skipped, missing ones are written. Verdicts are skipped by their offsets
instead, because the killed run may have been an older release that stopped before a record that this release reads.
* with or without the replay's state of that batch: the run replays it again from the state before the batch, because a
batch's own state counts only for later batches.
* killed between progress and Spark's checkpoint: Spark gives the batch again. Every record is skipped, by its offset.
* killed while gold was made: gold's progress is the old one. The same minutes are made again, with those since then.
* the checkpoint is lost, or of another `PLAN`: Spark begins at the first offset. What bronze has is skipped.

Batch numbers are the lake's own, not Spark's: Spark's begin at 0 again with a new checkpoint, and a used number would
be skipped with everything in it. What follows from a batch is made from rows that bronze has, never from the topic: a
compacted topic holds less every hour. A record below the lake's position is skipped in the cases above only; at any
other time it is of another log (`positions.py`), and the run ends with Invalid. If two ingests run at once, only one
commit of a number succeeds; the other run sees that and stops with Conflict before it writes anything else.
"""

from loadmanager.history.ingest.channel import settled_states
from loadmanager.history.ingest.gold import refresh_gold
from loadmanager.history.ingest.stream import Ingest, Options

__all__ = ["Ingest", "Options", "refresh_gold", "settled_states"]
