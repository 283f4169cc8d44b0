"""From what a user typed to a checked recipe, hosts and data. Nothing is started here."""
