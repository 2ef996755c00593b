"""The backlog of a consumer group: what waits, for how long, how much of it passes a filter, and when it is gone.

`figures.py` has the three figures of one queue, of topics and of groups. `reading.py` fills them from a store of
offsets (`port.py`); everything else is pure. docs/backlog.md explains the figures.
"""
