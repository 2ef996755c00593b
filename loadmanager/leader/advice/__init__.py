"""The leader follows advice of the load history: it runs approved plans, measures their effect, keeps or undoes them.

`core.py` decides what the leader does next, and judges the effect. `changes.py` changes settings, cuts bundles and
moves them. `follower.py` runs all of this while a broker leads. Advice runs only within its bounds, and only if an
administrator approved it or the setting `advice_apply` is on. Brokers import this package after their start.
"""
