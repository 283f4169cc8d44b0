"""Traces a recipe's real model without weights: one JSON request on standard input, one JSON trace on
standard output (core/trace.py). Run in a process of its own: python -m muster.worker.tracing
"""
