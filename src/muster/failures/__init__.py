"""Failures of distributed training: one table (failures.json), read by ranks and the control side alike."""
