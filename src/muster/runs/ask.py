"""Ask the trained model questions, in a separate process."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Thread
from typing import Any

from muster.core.errors import DataError, JobError, RunFolderError, UsageError, refused
from muster.core.result import Unscored
from muster.core.state import State
from muster.failures.table import find
from muster.fleet import shell
from muster.results.fold import fold
from muster.runs.resume import frozen_recipe
from muster.store import events
from muster.store.databases import MAGIC, SUFFIXES, tables_of
from muster.store.lines import read_lines
from muster.store.runfolder import RunFolder, from_here
from muster.store.sealed import compare


@dataclass(frozen=True)
class Answers:
    """Rows of question, prediction and, where there is one, the expected answer; and the model's time for
    all."""

    rows: list[dict[str, Any]]
    seconds: float
    device: str
    figures: dict[str, float] = field(default_factory=dict)  # of a held-out set that is not questions
    metric: str = "exact match"  # what the share of right answers is called
    notes: list[str] = field(default_factory=list)  # which held-out samples were not asked, and why

    @property
    def exact_match(self) -> float | None:
        """The share of equal texts; None where nothing was expected."""
        return _share([row["exact"] for row in self.rows if "exact" in row])

    @property
    def scored(self) -> int | None:
        """The number of questions whose expected query could be run; None: there is no database."""
        count = sum(row.get("executed") is not None for row in self.rows)
        return count if count or self.unscored else None

    @property
    def unscored(self) -> list[Unscored]:
        """The questions whose expected query cannot be run."""
        return [
            Unscored(index=index, why=row["unscored"])
            for index, row in enumerate(self.rows)
            if row.get("unscored")
        ]

    @property
    def execution_match(self) -> float | None:
        """The share of scored questions with the same rows from the database."""
        return _share([row["executed"] for row in self.rows if row.get("executed") is not None])


class TrainedModel:
    """A run's trained model, loaded in a separate process until the block ends. A context manager.

    Raises RunFolderError where there is no model, JobError where it cannot be loaded.
    """

    def __init__(self, run: RunFolder) -> None:
        check_trained(run)
        check_model(run)
        self.recipe = frozen_recipe(run)
        self._complaints: deque[str] = deque(maxlen=50)
        self._process = shell.start([sys.executable, "-m", "muster.worker.ask"])
        self._reader = Thread(target=self._listen, daemon=True)
        self._reader.start()
        try:
            model = {"recipe": self.recipe.as_dict(), "model": str(run.model)}
            ready = next(self._say({**model, "cache": str(run.path / "data")}))
            self.device, self.converses = str(ready["ready"]), bool(ready["converses"])
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> TrainedModel:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, which may still be writing an answer that is no longer needed."""
        self._process.terminate()
        with suppress(TimeoutExpired):
            self._process.wait(5)
            return
        self._process.kill()
        self._process.wait()

    def ask(
        self,
        questions: Sequence[str],
        stream: Callable[[str], None] | None = None,
        *,
        schema: str | None = None,
        before: Sequence[tuple[str, str]] = (),
    ) -> Answers:
        """Return the answers. `stream`: gets the words of the answer to a single question as they arrive;
        nothing where this model cannot do that. `schema`: of the tables that the questions are about.
        `before`: earlier turns of the conversation, (role, text), where the model `converses`. Raises
        UsageError for an empty question and for a schema that the model does not read, and JobError."""
        check_questions(questions)
        asked = [self.recipe.with_schema(each, schema) if schema else each for each in questions]
        request = {"questions": asked, "stream": stream is not None, "before": list(before)}
        answers = self._answers(request, stream)
        for row, question in zip(answers.rows, questions, strict=True):
            row["question"] = question
        return answers

    def evaluate(self, limit: int | None = None) -> Answers:
        """Answer the held-out set."""
        return self._answers({"limit": limit})

    def _answers(self, request: dict[str, Any], stream: Callable[[str], None] | None = None) -> Answers:
        rows = []
        for message in self._say(request):
            if "row" in message:
                rows.append(message["row"])
            elif "piece" in message and stream is not None:
                stream(message["piece"])
            elif "done" in message:
                return Answers(rows, device=self.device, **message["done"])
        raise AssertionError("unreachable: what is said ends with an answer or an error")

    def _say(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request, and yield the answers for as long as they are read. Raises what the model's process
        raised, or JobError where it has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            message = json.loads(line)
            if "error" in message:
                problem = message["error"]
                kind = UsageError if problem.pop("code") == 2 else JobError
                raise kind(failure=problem.pop("id"), **problem)
            yield message
        self._reader.join(5)
        raise _explain(self._complaints)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints.append(line.decode("utf-8", "replace").strip())


def ask(
    run: RunFolder,
    questions: Sequence[str],
    *,
    evaluate: bool = False,
    limit: int | None = None,
    schema: str | None = None,
) -> Answers:
    """Answer `questions`, or the held-out set. `schema`: see read_schema. Raises UsageError, RunFolderError
    and JobError."""
    if not evaluate:
        check_questions(questions)
    tables = read_schema(run, schema, evaluate=evaluate)
    with TrainedModel(run) as model:
        return model.evaluate(limit) if evaluate else model.ask(questions, schema=tables)


def read_schema(run: RunFolder, given: str | None, *, evaluate: bool = False) -> str | None:
    """Return the schema that belongs to the questions: a SQLite file's, a text file's, or `given` itself
    where it is no file. Raises UsageError where it cannot be read, or the run's model reads none."""
    if given is None:
        return None
    if evaluate:
        raise UsageError("means nothing to --evaluate: each held-out row has its own", where="--schema")
    check_trained(run)
    frozen_recipe(run).with_schema("", "schema")
    file = Path(given).expanduser()
    if file.is_file():
        with refused(DataError, "read", file), file.open("rb") as opened:
            binary = opened.read(len(MAGIC)) == MAGIC
        text = tables_of(file) if binary else "".join(line for _, line in read_lines(file))
    elif len(given.split()) > 1 and not given.lower().endswith(SUFFIXES):
        text = given
    else:
        hint = "a SQLite file, a text file, or the schema itself, such as 'singer: name TEXT, age INTEGER'"
        raise UsageError(f"no such file: {given}", where="--schema", hint=hint)
    if not text.strip():
        raise UsageError("is empty", where=f"--schema {given}")
    return text.strip()


def check_questions(questions: Sequence[str]) -> None:
    """Raise UsageError where there are no questions, or one is empty."""
    if not questions:
        raise UsageError(
            "no question given",
            hint='muster ask RUN "question", --file FILE (- for standard input), or --evaluate; '
            "on a terminal, muster ask RUN asks for questions",
        )
    for number, question in enumerate(questions, 1):
        if not question.strip():
            where = "the question" if len(questions) == 1 else f"question {number}"
            raise UsageError("is empty", where=where, hint='muster ask RUN "question"')


def check_trained(run: RunFolder) -> None:
    """Raise RunFolderError where there is no model, with the reason."""
    if run.model.is_dir():
        return
    state = run.state()
    if run.recipe.exists() and not frozen_recipe(run).trains:
        raise RunFolderError(
            "has no model: nothing was trained", where=run.id, hint=f"`muster show {run.word}`"
        )
    if run.recipe.exists() and not frozen_recipe(run).checkpoint.model:
        raise RunFolderError("kept no model", where=run.id, hint="train it with checkpoint.model=true")
    raise _no_model(run, state)


def _no_model(run: RunFolder, state: State) -> RunFolderError:
    """Return the error that says why there is no model. A run that failed before its first step would fail
    again: its cause is what helps."""
    if state is State.RUNNING:
        return RunFolderError(
            "has no trained model: the run is running", where=run.id, hint="wait for its end"
        )
    result = run.read_result()
    failure = result.failure if result else None
    if result is None or failure is None:
        again = f"`muster resume {run.word}`"
        if state.good:  # it was removed
            return _damaged(run, "it is not there", fold(events.read_events(run.events)).saved)
        return RunFolderError(f"has no trained model: the run {state.words}", where=run.id, hint=again)
    cause = ": ".join(part for part in (failure.host, failure.where, failure.what) if part)
    hint = failure.hint
    if (result.steps or state is not State.FAILED) and "muster resume" not in (hint or ""):
        hint = "; ".join(part for part in (hint, f"`muster resume {run.word}`") if part)
    return RunFolderError(f"has no trained model: the run {state.words}: {cause}", where=run.id, hint=hint)


def check_model(run: RunFolder) -> None:
    """Raise RunFolderError where the trained model's files are not what the ranks saved."""
    saved = fold(events.read_events(run.events)).saved
    files = next((each.files for each in reversed(saved) if each.step is None), None)
    wrong = compare(str(run.model), files)[0] if files else None
    if wrong:
        raise _damaged(run, wrong, saved)


def _damaged(run: RunFolder, wrong: str, saved: Sequence[events.Saved]) -> RunFolderError:
    steps = [each.step for each in saved if each.step]
    again = "train it again"
    if steps:
        again = f"`muster resume {run.word} --step {steps[-1]}` saves it again"
    elif run.of_pipeline:
        again = f"rm -r {from_here(run.path)}, and the pipeline trains it again when it is resumed"
    return RunFolderError(f"the trained model is damaged: {wrong}", where=str(run.model), hint=again)


def _explain(complaints: Sequence[str]) -> JobError:
    last = next((line for line in reversed(complaints) if line), "no reason given")
    cause = find(last, "log", "error")
    hint, failure = (cause.remedy, cause.failure.id) if cause else (None, None)
    return JobError(f"the model failed: {last}", hint=hint, failure=failure)


def _share(values: list[Any]) -> float | None:
    return sum(bool(value) for value in values) / len(values) if values else None
