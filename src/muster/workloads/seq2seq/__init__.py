"""Texts to texts: an encoder-decoder model (T5) learns what each input becomes."""
