"""Floor 4: decides what the recipe leaves open, from the hosts' facts."""
