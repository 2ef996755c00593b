"""Load history: a lakehouse of load reports, channel records and decisions, and the jobs that query it.

All jobs are PySpark DataFrame code. They run the same on `local[2]`, on a cluster and through Spark Connect, and
collect nothing unbounded. How the data flows:

    topics ─▶ sources/ ─▶ ingest/ (bronze ─▶ silver ─▶ gold) ─▶ analyses/ audit/ replay/ ─▶ advising/ report/

`columns.py` names every table and column, `lake.py` says where tables lie and how each is written once, and `files.py`
writes Parquet files for it. `session.py` makes a session with the jars from `jars.py`; `daemon.py` forks its Python
workers, and `tasks.py` has what their tasks share. `verdicts.py` replays the channel's log, for `ingest/` and `audit/`.
`progress.py` shows people how far a job is, and what it waits for. `views/` has SQL views for analysts; `duck.py` and
`delta.py` read a lake without Spark. Brokers import only `published.py`, which is free of Spark: it reads what jobs
found from plain files.
"""
