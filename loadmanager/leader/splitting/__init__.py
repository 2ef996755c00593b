"""Splits and merges: owners split hot bundles and merge cold neighbours, the leader spreads children.

`loadmanager.strategies.splitting` decides what is hot or cold and where to cut. `owner.py` runs at every owner and
keeps its decisions for people. `service.py` has the leader's part.
"""
