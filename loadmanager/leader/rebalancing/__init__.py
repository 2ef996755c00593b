"""What the leader does about balance, round by round: decide, begin moves under limits, run approved plans.

`rebalancer.py` is the shell, one for a term. `limits.py` says which moves may begin now, `plans.py` (THE TABLE) what
may happen to a plan, `planning.py` what a plan says, `progress.py` where its bundles are: all pure. `shelf.py` keeps
plans as documents, so that any broker answers for them and the next leader goes on with what was approved.
"""
