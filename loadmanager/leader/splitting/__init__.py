"""Splits and merges: owners split hot bundles and merge cold neighbours, the leader spreads children.

`loadmanager.strategies.splitting` decides what is hot or cold and where to cut; `loadmanager.leader.quarantine` weighs
which bundles kill brokers. `scheduler.py` runs at every owner, `leading.py` and `locking.py` at the leader.
`journal.py` keeps the decisions for people.
"""
