"""Group relative policy optimization: a decoder learns from the rewards of several answers to one prompt."""
