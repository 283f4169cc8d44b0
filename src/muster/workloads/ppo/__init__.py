"""Proximal policy optimization: a decoder learns from rewards of answers that it draws, with a critic."""
