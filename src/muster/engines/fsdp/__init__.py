"""PyTorch FSDP2."""
