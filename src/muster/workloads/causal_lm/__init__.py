"""Causal language modelling: a decoder (GPT-2, OPT, Llama and their like) learns to go on with text."""
