"""Direct preference optimization: a decoder learns from pairs of answers, without a reward model."""
