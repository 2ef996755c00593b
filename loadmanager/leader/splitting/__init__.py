"""Which bundles there should be: hot ones are split, children spread, cold neighbours merged, deadly ones locked up.

Pure: `conditions.py` (what is hot, what is cold), `deciding.py` (splits), `cutting.py` (where to cut, by load),
`dividing.py` (what each child carries), `merging.py`, `spreading.py` (where children go); and of bundles that brokers
die of: `losses.py` (lost brokers), `fates.py` (whether they crashed), `quarantine.py` and `evidence.py` (what speaks
against which bundle), `trials.py` (locked up, tried again, let go). Shells: `scheduler.py` runs with every owner,
`leading.py` and `locking.py` with the leader. `journal.py` keeps what was decided, for people.
"""
