"""Copies a channel from one log into another: export, import, migrate. Tokens only grow.

The new log has a later generation and is filled with ordinary records, so the law needs no rule for this.
"""
