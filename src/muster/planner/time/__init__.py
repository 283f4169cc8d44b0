"""How long a step takes: computation, what ranks exchange, and machines of different speeds. Pure."""
