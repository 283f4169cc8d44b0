"""Floor 4: what the recipe leaves open, decided from what the hosts are."""
