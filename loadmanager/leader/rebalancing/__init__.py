"""What the leader does about balance, round by round: decide, begin moves under limits, run approved plans.

`rebalancer.py` is the shell, one for a term. `limits.py` says which moves may begin now, `planning.py` what a plan of
moves says, `running.py` makes its moves.
"""
