"""The leader follows advice of the load history: it runs approved plans, measures their effect, keeps or undoes them.

`publishing.py` turns advice into a plan. `judging.py` decides what the leader does next. `measured_rounds.py` reads the
rounds that show the effect. `appliers/` change settings, cut bundles and move them. `following.py` runs all of this
while a broker leads. Advice runs only within its bounds, and only if an administrator approved it or the setting
`advice_apply` is on. Brokers import this package after their start.
"""
