"""How long a step takes: computation, communication, and machines of different speeds. Pure."""
