"""Which broker gets a bundle without an owner. Pure."""
