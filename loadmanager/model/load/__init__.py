"""Loads: what a broker reports, means over time, and usage as a part of what a broker can carry."""
