"""The life of a plan, from proposal to undo: docs/plans.md. Values and pure functions, except the store.

`model.py` has a plan's values, `advice.py` the proposals of jobs on the load history, `bounds.py` the limits of advice,
`table.py` THE TABLE of a plan's legal steps, `progress.py` the state of its moves, `effect.py` the judgement of a
promised effect. `store.py` keeps plans as documents, encoded by `shortening.py`: any broker can show them, and the next
leader continues with what was approved.
"""
