"""Reward model: a decoder with one number on top learns which of two answers is better."""
