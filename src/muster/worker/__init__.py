"""Runs as a rank: engines, workloads, instruments. Imports core and store alone; the control side never
imports it."""
