"""Which broker gets a bundle that nobody owns. Pure."""
