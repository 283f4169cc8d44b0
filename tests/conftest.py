"""Fixtures of every tier."""

from tests.cluster.fixtures import able, cluster, slurm, whole, whole_slurm

__all__ = ["able", "cluster", "slurm", "whole", "whole_slurm"]
