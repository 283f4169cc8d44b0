"""Runs: train, resume, submit, follow, list and stop them, ask what they trained."""
