"""Devices, links and machines as data, each figure with its source."""
