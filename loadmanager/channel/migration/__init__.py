"""Takes a channel out of one log and puts it into another: export, import, migrate. Tokens only grow on the way.

The new log is of a later generation and is filled with ordinary records, so nothing in the law knows of all this.
"""
