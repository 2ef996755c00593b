"""What brokers know of each other: who is registered, who is suspected, what each reports about its load."""
