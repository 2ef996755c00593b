"""What a broker observes of itself and of moves, for metrics and traces. It decides nothing."""
