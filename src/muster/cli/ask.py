"""muster ask"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from muster.cli.options import Json, Root, Run
from muster.cli.output import err_console, out_console, print_json, say
from muster.cli.parameters import Argument, Option
from muster.core.errors import DataError, UsageError, refused
from muster.core.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.runs.ask import Answers, TrainedModel

EXAMPLES = """Examples:

  muster ask last "How many employees work in Berlin?"

  muster ask last (on a terminal: type questions; the model stays loaded; Ctrl-D ends it)

  muster ask last --file questions.txt --json

  cat questions.txt | muster ask last --file -

  muster ask last --evaluate --limit 100

  muster ask last "How many singers are there?" --schema singers.sqlite (trained with data.schema)

  muster ask last "def main(" (a language model goes on with the text)

  muster ask last cat.png dog.jpg (a vision model names what is on them)"""


WRONG = 10  # answers that are shown of a held-out set


def ask(
    run: Run,
    question: Annotated[list[str] | None, Argument(help="One or more questions.")] = None,
    file: Annotated[
        Path | None, Option("--file", "-f", help="One question a line; - reads standard input.")
    ] = None,
    evaluate: Annotated[bool, Option("--evaluate", help="Answer the held-out set and score it.")] = False,
    limit: Annotated[
        int | None, Option("--limit", min=1, help="Ask at most this many held-out questions.")
    ] = None,
    schema: Annotated[
        str | None,
        Option(
            "--schema",
            help="For a model that was trained with data.schema: the tables that the questions are about, as "
            "a SQLite file, a text file, or the text itself.",
        ),
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Ask a trained model, or score it on the held-out set."""
    from muster.cli.views.results import print_afterwards
    from muster.cli.views.waiting import waiting
    from muster.runs.ask import TrainedModel, check_questions, check_trained, read_schema
    from muster.store.runfolder import find_any

    folder = find_any(run, root).trained
    questions = list(question or []) + (_lines(file) if file is not None else [])
    typed = sys.stdin.isatty() and sys.stdout.isatty()
    talk = typed and not (questions or evaluate or json or file is not None)
    if not talk and not evaluate:
        check_questions(questions)
    check_trained(folder)
    tables = read_schema(folder, schema, evaluate=evaluate)
    with waiting(err_console(), "loading the model"):
        model = TrainedModel(folder)
    with model:
        if tables is None and not evaluate and any(map(model.recipe.lacks_schema, questions or [""])):
            note = "the model was trained with the schema of tables; --schema FILE gives it one"
            err_console().print(f"[yellow]note[/yellow]: {note}")
        if talk:
            _talk(model, tables)
        else:
            _answer(model, questions, tables, evaluate=evaluate, limit=limit, json=json, file=folder.asked)
    if not json:
        print_afterwards(folder, asked=not evaluate)
    return 0


def _lines(file: Path) -> list[str]:

    with refused(DataError, "read", file):
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _talk(model: TrainedModel, schema: str | None) -> None:
    """Answer one question after the other, until the end of the input or Ctrl-C."""
    import readline  # noqa: F401  (input() then has a history and can be edited)

    err_console().print(f"the model is loaded ({model.device}); an empty line asks nothing, Ctrl-D ends")
    if model.converses:
        err_console().print("it knows what was said before; /new begins a new conversation")
    before: list[tuple[str, str]] = []
    while True:
        try:
            question = input("> ")
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        if not question.strip():
            err_console().print("the question is empty: type one, or Ctrl-D to end")
            continue
        if model.converses and question.strip() == "/new":
            before.clear()
            continue
        try:
            answers = _say(model, question, schema, before)
            if model.converses:
                before += [("user", question), ("assistant", str(answers.rows[0]["predicted"]))]
        except UsageError as error:  # such as an image that cannot be read: the next one may be
            say(f"error: {error}", err=True)


def _say(
    model: TrainedModel, question: str, schema: str | None, before: Sequence[tuple[str, str]] = ()
) -> Answers:
    """Print the answer to one question as it grows. `before`: earlier turns of the conversation."""
    from muster.cli.views.results import shown

    streamed = []

    def show(piece: str) -> None:
        streamed.append(piece)
        say(piece, end="")

    try:
        stream = show if sys.stdout.isatty() else None
        answers = model.ask([question], stream, schema=schema, before=before)
    except BaseException:
        if streamed:
            say("")
        raise
    whole = str(answers.rows[0]["predicted"])
    if streamed and "".join(streamed).strip() != whole.strip():  # it ends within a character
        say("")
        streamed.clear()
    say("" if "".join(streamed).strip() else shown(whole))
    return answers


def _answer(
    model: TrainedModel,
    questions: list[str],
    schema: str | None,
    *,
    evaluate: bool,
    limit: int | None,
    json: bool,
    file: Path,
) -> None:
    """Answer all questions, and print everything; or the held-out set: its score, some wrong answers, and all
    of them in a file."""
    from rich.markup import escape

    from muster.cli.views.results import print_answers
    from muster.cli.views.waiting import waiting
    from muster.core.result import unscored_words

    if len(questions) == 1 and not evaluate and not json:
        answers = _say(model, questions[0], schema)
    else:
        with waiting(err_console(), "answering"):
            answers = model.evaluate(limit) if evaluate else model.ask(questions, schema=schema)
    count = len(answers.rows)
    summary = {
        "questions": count,
        "seconds": answers.seconds,
        "milliseconds_per_question": 1000 * answers.seconds / max(1, count),
        "device": answers.device,
    }
    if answers.figures:
        _print_score(answers, as_json=json)
        return
    if evaluate:
        summary |= {"exact_match": answers.exact_match, "execution_match": answers.execution_match}
        summary |= {"metric": answers.metric, "scored": answers.scored}
        summary |= {"unscored": [each.model_dump() for each in answers.unscored]}
        summary |= {"notes": answers.notes}
    if json:
        print_json({**summary, "answers": answers.rows})
        return
    if count > 1 and not evaluate:
        print_answers(answers.rows)
    each = f"{summary['milliseconds_per_question']:.0f} ms each, {answers.device}"
    parts = [f"{counted(count, 'question')} in {answers.seconds:.2f} s ({each})"]
    if evaluate and answers.exact_match is not None:
        parts.append(f"{answers.metric} {100 * answers.exact_match:.1f} %")
    if evaluate and answers.execution_match is not None:
        parts.append(f"same rows from the database {100 * answers.execution_match:.1f} %")
    console = out_console() if evaluate else err_console()  # the score is what was asked for
    console.print("; ".join(parts))
    if evaluate:
        _print_wrong(answers.rows, file)
    for note in filter(None, (unscored_words(count, answers.scored, answers.unscored), *answers.notes)):
        err_console().print(f"[yellow]note[/yellow]: {escape(note)}")


def _print_wrong(rows: list[dict[str, Any]], file: Path) -> None:
    """Print some answers that differ from the expected ones; all go into the file."""
    import json

    from muster.cli.views.results import print_answers
    from muster.store.atomic import write_text

    wrong = [row for row in rows if not (row["exact"] or row["executed"] or row.get("unscored"))]
    if wrong:
        say(f"{min(WRONG, len(wrong))} of {counted(len(wrong), 'wrong answer')}:")
        print_answers(wrong[:WRONG])
    try:
        write_text(file, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    except OSError as error:
        err_console().print(f"[yellow]note[/yellow]: {file} cannot be written: {error.strerror}")
    else:
        err_console().print(f"all answers  {file}", soft_wrap=True)


def _print_score(answers: Answers, *, as_json: bool) -> None:
    """Print how well a language model predicts the held-out text."""
    if as_json:
        print_json({**answers.figures, "seconds": answers.seconds, "device": answers.device})
        return
    for name, value in answers.figures.items():
        shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
        out_console().print(f"  [dim]{name:<12}[/dim] {shown}")
    out_console().print(f"  [dim]{'time':<12}[/dim] {format_seconds(answers.seconds)}, {answers.device}")
