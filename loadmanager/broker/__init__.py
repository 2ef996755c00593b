"""One process: it starts and ends, serves what it owns, proves that it may, answers lookups, drains."""
