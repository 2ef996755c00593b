"""Apply and undo the changes of plans: one module for each kind of change, one contract (`contract.py`)."""
