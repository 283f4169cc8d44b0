"""REINFORCE leave-one-out: a decoder learns from an answer's reward beside those of the others."""
