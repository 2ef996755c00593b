"""Loads: a broker's reports, means over time, and usage as a fraction of capacity."""
