"""Brings the topics into the lake, each record once: bronze as it stands in the log, silver as what it says, gold by
the minute.

    Ingest(lake, source, options).run_available()      what there is now
    Ingest(lake, source, options).run(stop)            what there is and what comes, until the event is set
    refresh_gold(lake, load_ttl_s)                     minutes, made anew where silver has changed
    settled_states(lake)                               where the channel's fold stood behind each complete batch

A batch is four steps, each one commit of a table or several, each done once whatever happens:

    bronze ─▶ quarantine ─▶ silver tables and the fold's state ─▶ progress          (then Spark's checkpoint)

What a run finds that comes after one that was killed, and what it does:

* before bronze's commit, files written or not: nothing of the batch, and files that no commit names. Spark gives the
  same offsets again, or more; they are new. The files go with `maintain`.
* between bronze and progress: records in bronze behind `progress`. Everything after bronze is done again, from bronze's
  rows; what is committed is passed over by its number, what is not is written. Verdicts are passed over by their
  offsets: the run before may have been of a release that held the fold before a record that this one reads.
* with the state of the fold or without it: it is folded again from the state before the batch, whose own state counts
  for no batch but later ones.
* between progress and Spark's checkpoint: Spark gives the batch again. Every record is passed over, by its offset.
* while gold was made: gold's progress from before. The same minutes are made again, and those that came since.
* the checkpoint lost, or of another `PLAN`: Spark begins at the first offset. What bronze has is passed over.

The number of a batch is the lake's own, not Spark's: Spark's begin at 0 again with a new checkpoint, and a number that
was used would be passed over with everything in it. What follows from a batch is made of rows that bronze has, never of
what the topic holds by then: a compacted topic holds less every hour. Two ingests at once: of one number only one
commit is made; the other run sees that it was not its own, and stops with Conflict before it writes anything else.
"""

from loadmanager.history.ingest.gold import refresh_gold
from loadmanager.history.ingest.running import Ingest, Options
from loadmanager.history.ingest.verdicts import settled_states

__all__ = ["Ingest", "Options", "refresh_gold", "settled_states"]
