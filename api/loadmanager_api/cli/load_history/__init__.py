"""`loadmanager history …`: the jobs of the load history. Spark is imported when a job begins, not before."""
