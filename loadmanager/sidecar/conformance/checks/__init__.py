"""The checks, by theme."""
