"""Bytes per rank: what a model, its activations and an engine hold, in named parts that add up. Pure."""
