"""One broker process: it starts and ends, serves what it owns, proves its ownership, answers lookups, drains."""
