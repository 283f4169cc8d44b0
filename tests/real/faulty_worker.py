"""A job's ranks with a fault in one of them: FAULT=KIND:RANK, as in faulty_fabric. For tests alone."""

from __future__ import annotations

import os
import sys

from muster.worker import __main__ as worker
from tests.real.faulty_fabric import plant

if __name__ == "__main__":
    kind, _, rank = os.environ["FAULT"].partition(":")
    plant(kind, int(rank))
    sys.exit(worker.main())
