"""Policies: documents that say which broker may hold which bundle, and what they allow at a moment."""
