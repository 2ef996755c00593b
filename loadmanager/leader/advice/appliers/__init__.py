"""What applies and undoes the changes of plans: one module for each kind, with one contract (`contract.py`)."""
