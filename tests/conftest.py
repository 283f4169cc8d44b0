"""Fixtures of every tier."""

from tests.cluster.fixtures import able, cluster, whole

__all__ = ["able", "cluster", "whole"]
