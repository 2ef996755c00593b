"""The owner of a partition: elected, it writes snapshots and trims the log behind them."""
