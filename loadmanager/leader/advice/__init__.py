"""Advice: what the load history says would do better, shown by every broker and followed by the leader. No Spark here.

Jobs publish to the compacted topic `advice`. `model.py` has the values, `states.py` THE TABLE of what may become of
advice, `judging.py` what the leader does next, `effect.py` how the effect is measured; `board.py` reads and writes the
topic, `hands/` change settings, cut bundles and move them, `service.py` runs it all while a broker leads. Advice is
never applied unless an administrator approved it or the setting `advice_apply` is on, and never beyond its bounds.
Brokers import all of it after their start.
"""
