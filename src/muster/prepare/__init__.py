"""`muster prepare`: environments, models, data and caches on every host."""
