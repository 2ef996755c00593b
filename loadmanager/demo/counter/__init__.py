"""A small real service: counters by topic, kept in memory by the topic's owner and stored before they are answered.

`ledger.py` is the storage and its fencing. `service.py` has the hooks for the load manager and the HTTP interface.
`load.py` is a load generator that uses the client router, and audits that nothing was lost or doubled. Run:

    mkdir -p counter-data
    python -m loadmanager.demo.counter --log sqlite:counter-data/cluster.db --store counter-data/counters.db
    python -m loadmanager.demo.counter.load --admin http://127.0.0.1:PORT --store counter-data/counters.db --seconds 10

Run the line with `--log` once per broker.
"""
