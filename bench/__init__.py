"""Benches: figures with their targets and floors, one JSON line each. `python -m bench [NAME …] [--kafka]`."""
