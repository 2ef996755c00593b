"""Load history: a lakehouse of load reports, channel records and decisions, and the jobs that query it.

All jobs are PySpark DataFrame code. They run the same on `local[2]`, on a cluster and through Spark Connect, and
collect nothing unbounded. How the data flows:

    topics ─▶ sources/ ─▶ ingest/ (bronze ─▶ silver ─▶ gold) ─▶ analyses/ audit/ replay/ ─▶ advising/ report/

`columns.py` names every table and column, `lake.py` says where tables lie and how each is written once, `session.py`
makes a session with the jars from `jars.py`. `views/` has SQL views for analysts, and `duck.py` reads a lake without
Spark. Brokers import only `published.py`, which is free of Spark: it reads what jobs found from plain files.
"""
