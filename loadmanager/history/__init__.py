"""Load history: what brokers reported, what the channel and the leader decided, kept in a lakehouse and asked about.

All jobs are PySpark DataFrame code. They run the same on `local[2]`, on a cluster and through Spark Connect, and
collect nothing unbounded. The way of the data:

    topics ─▶ sources/ ─▶ ingest/ (bronze ─▶ silver ─▶ gold) ─▶ analyses/ audit/ replay/ ─▶ advising/ report/

`schemas.py` names every table and column, `lake.py` says where tables lie and how they are written once, `session.py`
makes a session with the jars that `jars.py` brings. Brokers import none of it but `published.py`, which has no Spark in
it: what jobs found is published as plain files.
"""
