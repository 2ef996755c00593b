"""One life of a plan, from proposal to undo: docs/plans.md. Values and pure functions, but for the store.

`model.py` has a plan's values, `advice.py` what a job of the load history proposes, `bounds.py` how much of that is
allowed, `table.py` THE TABLE of what may become of a plan, `progress.py` where its bundles are, `effect.py` how a
promised effect is judged. `store.py` keeps plans as documents, written as `shortening.py` says: any broker answers for
them, and the next leader goes on with what was approved.
"""
