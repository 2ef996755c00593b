"""The leader follows advice of the load history: it runs approved plans that have some, measures, keeps or undoes them.

`publishing.py` makes advice a plan. `judging.py` says what the leader does next, `measured_rounds.py` gives the rounds
by which the effect is measured, `appliers/` change settings, cut bundles and move them, `following.py` runs it all
while a broker leads. Nothing runs unless an administrator approved it or the setting `advice_apply` is on, and never
beyond its bounds. Brokers import all of it after their start.
"""
