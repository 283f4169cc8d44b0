"""Floor 5: holding a job while it runs: the agents' streams, the event log, and what it all came to."""
