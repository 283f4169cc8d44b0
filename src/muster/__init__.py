"""Muster: from a list of machines to a trained model, with proof that each machine pulled its weight."""

__version__ = "0.1.0"
