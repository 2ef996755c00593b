"""Consumer groups at the admin endpoint: their coordinator, if this broker has one, and their backlogs."""
