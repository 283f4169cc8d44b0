"""What `muster ls` says of the recorded runs and benches."""

from __future__ import annotations

import pytest

from tests.golden.documents import Documents, muster
from tests.golden.test_shown import recorded

CASES = {
    "ls": (),
    "ls --json": ("--json",),
    "ls --markdown": ("--markdown",),
    "ls --csv": ("--csv",),
    "ls --where": ("--where", "status = 'succeeded' AND samples_per_second > 100"),
    "ls --runs of a bench": ("--runs", "runs/bench-cut/runs"),
}
DOCUMENTS = [
    Documents("listed", tuple(CASES), lambda case: str(muster("ls", *CASES[case], place=recorded())))
]


@pytest.mark.parametrize("case", CASES)
def test_the_list_of_runs(case: str) -> None:
    DOCUMENTS[0].check(case)
