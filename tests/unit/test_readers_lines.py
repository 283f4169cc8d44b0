"""Tools that write a step on a line, as they printed it; tests/golden/documents has what is read in each."""

from __future__ import annotations

import pytest

from tests.unit.logs import LOGS, one


@pytest.mark.parametrize("label", ["[rank0]:", "0: ", "[default0]:", "[1,0]<stdout>:"])
def test_labels_of_launchers_change_nothing(label: str) -> None:
    for name in ("megatron", "olmo", "composer", "modded", "nemo", "nano"):
        lines = LOGS[name].strip("\n").split("\n")
        job, labelled = one(lines), one([label + line for line in lines])
        assert labelled.measured == job.measured and labelled.batch == job.batch
