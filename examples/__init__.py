"""Services that embed a broker: `embed_*.py` in ten lines, `counter/` for real."""
