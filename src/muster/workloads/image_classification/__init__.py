"""Image classification: a vision model (ViT) learns to name what is on an image."""
