"""Consumer groups: which consumer reads which queue of the topics that its group subscribes to."""
