"""The audit of the channel: replays a partition independently, and checks what was promised of every record.

`Auditor` judges a replayed partition entry by entry: it knows what was promised, but not how the law keeps it. There is
one judge for three uses: `verification.py` replays the live log and compares it with snapshots and brokers' replicas,
`loadmanager.history.audit` replays the whole history on Spark, and the simulator every append.
"""
