"""Rebalancing by the leader: rounds decide, begin moves under limits, and run approved plans.

`rebalancer.py` is the shell of one term. `limits.py` says which moves may begin now, `planning.py` makes plans,
`running.py` makes their moves.
"""
