"""Versioned documents on a topic, under policies, plans and live settings: the first valid one wins."""
