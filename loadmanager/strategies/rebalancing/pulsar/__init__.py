"""Pulsar's shedders as strategies, so that they can be compared with ours and taken by who is used to them."""
