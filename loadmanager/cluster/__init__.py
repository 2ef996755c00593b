"""What brokers know of each other: who is there, who is suspected, what each one reports about its load."""
