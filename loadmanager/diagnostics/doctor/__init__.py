"""A support bundle: what the members of a running cluster say of themselves, without secrets."""
