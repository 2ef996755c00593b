"""A small real service: counters by topic, kept in memory by the topic's owner and stored before they are answered.

`ledger.py` is the storage and its fencing, `host.py` what the load manager calls, `web.py` the HTTP interface,
`load.py` a load generator that drives it through the client router, `audit.py` the check that nothing was lost or
doubled. Run, from the root of the repository:

    mkdir -p counter-data
    python -m examples.counter --log sqlite:counter-data/cluster.db --store counter-data/counters.db  # once or more
    python -m examples.counter.load --admin http://127.0.0.1:PORT --store counter-data/counters.db --seconds 10
"""
