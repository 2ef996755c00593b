"""Explains why a bundle moved or stayed, and what other settings would have decided."""
