"""Fixtures of every tier."""

import signal

from hypothesis import settings

from tests.cluster.fixtures import able, cluster, slurm, whole, whole_slurm

__all__ = ["able", "cluster", "slurm", "whole", "whole_slurm"]

settings.register_profile(
    "muster", deadline=None, max_examples=200, derandomize=True
)  # a busy machine is no failure
settings.load_profile("muster")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background: children would, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
