"""Versioned documents in a topic, the basis of policies, plans and live settings: the first valid write wins."""
