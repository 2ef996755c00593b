"""The leader's hands on what advice is about: one module for each kind of change, with one contract (`contract.py`)."""
