"""What the command line says of input that it refuses: error, place and hint; and that nothing was left."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pytest

from tests.golden.documents import Documents, muster, workplace

SAMPLE = '{"question": "how many", "sql": "SELECT 1"}\n'
# In the folder in which the commands are typed.
FILES = {
    "empty-hosts": "# nobody\n\n",
    "twice": "node1 slots=2\nnode1 slots=2\n",
    "malformed": "node1 slots=2\nnode2 slots=two\n",
    "bad.yaml": "workload: [text2sql\n",
    "loop.yaml": "inherit: loop\n",
    "casual.yaml": "workload: casual-lm\ndata: {sequence: 64}\n",
    "spelling.yaml": "workload: spelling\n",
    "fours.yaml": "groups: [4]\njobs: [{recipe: digits}]\n",
    "ds.json": '{"micro_batch_per_gpu": 4}',
    "stage2.json": '{"zero_optimization": {"stage": 2}}',
    "stage3.json": '{"zero_optimization": {"stage": 3}}',
    "data/train.jsonl": SAMPLE * 3 + "not json\n",
    "one.csv": "question,sql\nq,one\n",
    "two.csv": "question,sql\nq,one\nr,two\n",
    "taken/precious": "do not touch",
    "notes.txt": "nothing",
}
COMMANDS = (Path(__file__).parent / "commands.txt").read_text(encoding="utf-8").splitlines()


@lru_cache
def folder() -> Path:
    """The folder in which the commands are typed."""
    place = workplace() / "refused"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place


def refused(command: str) -> str:
    """What is printed. Raises AssertionError where something is left in the folder."""
    place = folder()
    with mock.patch("muster.planner.plan.tracer", lambda *_: None):  # as with --quick, and without torch
        told = str(muster(*shlex.split(command), place=place))
    left = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()} - {*FILES}
    assert not left, f"{command}: leaves {left}"
    return re.sub(r"\d+ shipped", "{some} shipped", told)


DOCUMENTS = [Documents("refused", tuple(COMMANDS), refused)]


@pytest.mark.parametrize("command", COMMANDS)
def test_input_that_is_refused(command: str) -> None:
    DOCUMENTS[0].check(command)
