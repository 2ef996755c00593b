"""The life of a plan, from proposal to undo: docs/plans.md. Values and pure functions, except the store.

`plan.py` has a plan's values and the state of its moves. `advice.py` has the proposals of jobs on the load history and
their limits. `table.py` is THE TABLE of a plan's legal steps. `store.py` keeps plans as documents: any broker can show
them, and the next leader continues with what was approved.
"""
