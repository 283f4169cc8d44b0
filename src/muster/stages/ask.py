"""Ask: the trained model answers questions, in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from muster.core.errors import JobError, MusterError, RunFolderError, UsageError
from muster.core.result import Unscored
from muster.shell import RealShell, Shell
from muster.stages.resume import frozen_recipe
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.sealed import compare
from muster.supervise.fold import fold


@dataclass(frozen=True)
class Answers:
    """Rows of question and prediction (and what was expected), and how long the model took for all."""

    rows: list[dict[str, Any]]
    seconds: float
    device: str
    figures: dict[str, float] = field(default_factory=dict)  # of a held-out set that is not questions
    metric: str = "exact match"  # what the share of right answers is called

    @property
    def exact_match(self) -> float | None:
        """Share of equal texts; None where nothing was expected."""
        return _share([row["exact"] for row in self.rows if "exact" in row])

    @property
    def scored(self) -> int | None:
        """Questions whose expected query could be run; None: there is no database."""
        count = sum(row.get("executed") is not None for row in self.rows)
        return count if count or self.unscored else None

    @property
    def unscored(self) -> list[Unscored]:
        """Questions whose expected query cannot be run."""
        return [
            Unscored(index=index, why=row["unscored"])
            for index, row in enumerate(self.rows)
            if row.get("unscored")
        ]

    @property
    def execution_match(self) -> float | None:
        """Share of the scored questions with the same rows from the database."""
        return _share([row["executed"] for row in self.rows if row.get("executed") is not None])


def ask(
    run: RunFolder,
    questions: list[str],
    *,
    evaluate: bool = False,
    limit: int | None = None,
    shell: Shell | None = None,
) -> Answers:
    """Answer `questions`, or the held-out set. Raises RunFolderError where there is no model, JobError."""
    if not run.model.is_dir():
        state = run.state()
        if run.recipe.exists() and not frozen_recipe(run).trains:
            raise RunFolderError(
                "has no model: nothing was trained", where=run.id, hint=f"`muster show {run.id}`"
            )
        if run.recipe.exists() and not frozen_recipe(run).checkpoint.model:
            raise RunFolderError("kept no model", where=run.id, hint="train it with checkpoint.model=true")
        raise _no_model(run, state)
    if not questions and not evaluate:
        raise UsageError(
            "no question was given", hint='muster ask RUN "question", --file FILE, or --evaluate'
        )
    check_model(run)
    request = {
        "recipe": frozen_recipe(run).as_dict(),
        "model": str(run.model),
        "cache": str(run.path / "data"),
        "questions": questions,
        "evaluate": evaluate,
        "limit": limit,
    }
    code, out, err = (shell or RealShell()).run(
        [sys.executable, "-m", "muster.worker.ask"], input=json.dumps(request).encode()
    )
    lines = [json.loads(line) for line in out.decode("utf-8").splitlines() if line.startswith("{")]
    if lines and "error" in lines[-1]:
        problem = lines[-1]["error"]
        kind = UsageError if problem.pop("code") == 2 else JobError
        raise _raised(kind, problem)
    if code != 0 or not lines:
        raise _explain(err.decode("utf-8", "replace"))
    summary = lines.pop()
    return Answers(
        lines,
        summary["seconds"],
        summary["device"],
        summary.get("figures") or {},
        summary.get("metric", "exact match"),
    )


def _no_model(run: RunFolder, state: str) -> RunFolderError:
    """Why there is none. One that failed before its first step would fail again: its cause is what helps."""
    if state == "running":
        return RunFolderError(
            "has no trained model: the run is running", where=run.id, hint="wait for its end"
        )
    result = run.read_result()
    failure = result.failure if result else None
    if result is None or failure is None:
        again = f"`muster resume {run.word}`"
        return RunFolderError(f"has no trained model: the run is {state}", where=run.id, hint=again)
    cause = ": ".join(part for part in (failure.host, failure.where, failure.what) if part)
    hint = failure.hint
    if (result.steps or state != "failed") and "muster resume" not in (hint or ""):
        hint = "; ".join(part for part in (hint, f"`muster resume {run.word}`") if part)
    return RunFolderError(f"has no trained model: the run {_ENDED[state]}: {cause}", where=run.id, hint=hint)


_ENDED = {
    "failed": "failed",
    "stopped": "was stopped",
    "timeout": "ended by its timeout",
    "succeeded": "ended",
}


def check_model(run: RunFolder) -> None:
    """Raise RunFolderError where the trained model's files are not what the ranks saved."""
    saved = fold(events.read_events(run.events)).saved
    files = next((each.files for each in reversed(saved) if each.step is None), None)
    wrong = compare(str(run.model), files)[0] if files else None
    if wrong:
        steps = [each.step for each in saved if each.step]
        again = f"`muster resume {run.id} --step {steps[-1]}` saves it again" if steps else "train it again"
        raise RunFolderError(f"the trained model is damaged: {wrong}", where=str(run.model), hint=again)


def _raised(kind: type[MusterError], problem: dict[str, Any]) -> MusterError:
    return kind(problem["what"], where=problem["where"], host=problem["host"], hint=problem["hint"])


def _explain(stderr: str) -> JobError:
    last = (stderr.strip().splitlines() or ["no reason given"])[-1]
    if "No module named" in last:
        return JobError(f"the model cannot be loaded here: {last}", hint="pip install 'passmuster[train]'")
    return JobError(f"the model failed: {last}")


def _share(values: list[Any]) -> float | None:
    return sum(bool(value) for value in values) / len(values) if values else None
