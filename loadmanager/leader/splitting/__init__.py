"""Splits and merges: owners split hot bundles and merge cold neighbours, the leader spreads children.

`loadmanager.strategies.splitting` decides what is hot or cold and where to cut. `scheduler.py` runs at every owner,
`leading.py` at the leader. `journal.py` keeps the decisions for people.
"""
