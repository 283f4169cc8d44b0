"""How good answers are: exact match, and the same rows from the database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.worker.workloads.base import HeldOut

LONGEST_REASON = 200  # characters


@dataclass(frozen=True)
class Graded:
    """One answer beside what was expected. `executed`: whether it gives the same rows; None where the
    expected ones cannot be had, and `unscored` says why (None: the question has no database)."""

    question: str
    predicted: str
    expected: str
    exact: bool
    executed: bool | None
    unscored: str | None = None


def judge(questions: list[HeldOut], answers: list[str]) -> list[Graded]:
    """Judge every answer. Exact: equal texts, but for runs of white space."""
    from muster.worker.data.sqlexec import QueryFailed, run_query, same_result

    judged = []
    for question, answer in zip(questions, answers, strict=True):
        exact = answer.split() == question.expected.split()
        executed = unscored = None
        if question.database:
            database = Path(question.database)
            try:
                if exact:
                    run_query(database, question.expected)  # else exact answers alone would count here
                executed = exact or same_result(database, answer, question.expected)
            except (QueryFailed, OSError) as error:
                unscored = str(error)[:LONGEST_REASON]
        judged.append(Graded(question.question, answer, question.expected, exact, executed, unscored))
    return judged
