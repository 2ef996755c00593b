"""Which bundles there should be: owners split the hot ones and merge cold neighbours, the leader spreads children.

What is hot, what is cold and where to cut is decided in `loadmanager.strategies.splitting`; who dies of a bundle, in
`loadmanager.leader.quarantine`. `scheduler.py` runs with every owner, `leading.py` and `locking.py` with the leader.
`journal.py` keeps what was decided, for people.
"""
