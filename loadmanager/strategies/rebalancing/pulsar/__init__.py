"""Pulsar's shedders as strategies, to compare with ours and for users who know them."""
