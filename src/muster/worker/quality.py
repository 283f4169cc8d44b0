"""How good answers are: exact match, and the same rows from the database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.worker.workloads.base import HeldOut


@dataclass(frozen=True)
class Judged:
    """One answer beside what was expected. `executed` is None where the expected rows cannot be had."""

    question: HeldOut
    predicted: str
    exact: bool
    executed: bool | None


def judge(questions: list[HeldOut], answers: list[str]) -> list[Judged]:
    """Judge every answer. Exact: equal texts, but for runs of white space."""
    from muster.worker.data.sqlexec import QueryFailed, same_result

    judged = []
    for question, answer in zip(questions, answers, strict=True):
        exact = answer.split() == question.expected.split()
        executed = None
        if question.database:
            try:
                executed = exact or same_result(Path(question.database), answer, question.expected)
            except (QueryFailed, OSError):  # the expected statement does not run: nothing to compare with
                executed = None
        judged.append(Judged(question, answer, exact, executed))
    return judged
