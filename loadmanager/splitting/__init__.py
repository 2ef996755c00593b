"""Which bundles there should be: hot ones are split, children spread, cold neighbours merged, deadly ones locked up.

Pure: `conditions.py` (what is hot, what is cold), `deciding.py` (splits), `cutting.py` (where to cut, by load),
`dividing.py` (what each child carries), `merging.py`, `spreading.py` (where children go), `quarantine.py` (bundles of
which brokers die). Shells: `scheduler.py` runs with every owner, `leading.py` with the leader. `journal.py` keeps what
was decided, for people.
"""
