"""Runs: train, resume, submit, follow, list and stop them, ask their models."""
