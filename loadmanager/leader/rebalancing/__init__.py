"""Rebalancing by the leader: rounds decide, begin moves under limits, and run approved plans.

`rounds.py` runs one term. `limits.py` says which moves may begin now, `moves.py` begins them. `actions.py` makes plans,
`plan_runner.py` runs them.
"""
