"""Floor 2: the run folder. Every path, atomic writes, the event schema, queries over runs."""
