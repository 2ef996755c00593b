"""Coordinates consumer groups: who is a member, which partitions each may read, and when one has changed hands.

`group.py` decides for one group and is pure; `records.py` is what it keeps in the log; `targets.py` asks the
strategies; `messages.py` is what members and coordinators say to each other.
"""
