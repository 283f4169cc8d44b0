"""Text to SQL: an encoder-decoder model (T5) learns to translate questions."""
