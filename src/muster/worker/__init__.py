"""Runs as a rank: workloads, instruments, and through the registry an engine. Imports core, store and
engines' specs alone; the control side never imports it."""
