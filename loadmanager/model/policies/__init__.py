"""Policies: documents that say which broker may hold which bundle, and what they permit at a given moment."""
