"""muster ask"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.options import Json, Root, Run

if TYPE_CHECKING:
    from muster.stages.ask import Answers

EXAMPLES = """Examples:

  muster ask last "How many employees work in Berlin?"

  muster ask last --file questions.txt --json

  muster ask last --evaluate --limit 100

  muster ask last "def main(" (a language model goes on with the text)

  muster ask last cat.png dog.jpg (a vision model names what is on them)"""


def ask(
    run: Run,
    question: Annotated[list[str] | None, typer.Argument(help="One or more questions.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="One question a line.")] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Answer the held-out set and score it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many held-out questions.")
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Ask a trained model, or score it on the held-out set."""
    from rich.markup import escape

    from muster.cli.output import err_console, print_answers, print_json
    from muster.core.errors import DataError
    from muster.core.result import unscored_words
    from muster.stages.ask import ask as run_ask
    from muster.store.runfolder import find_run

    questions = list(question or [])
    if file is not None:
        try:
            questions += [
                line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read: {error}", where=str(file)) from None
    answers = run_ask(find_run(run, root), questions, evaluate=evaluate, limit=limit)
    count = len(answers.rows)
    summary = {
        "questions": count,
        "seconds": answers.seconds,
        "milliseconds_per_question": 1000 * answers.seconds / max(1, count),
        "device": answers.device,
    }
    if answers.figures:
        return _print_score(answers, as_json=json)
    if evaluate:
        summary |= {"exact_match": answers.exact_match, "execution_match": answers.execution_match}
        summary |= {"metric": answers.metric, "scored": answers.scored}
        summary |= {"unscored": [each.model_dump() for each in answers.unscored]}
    if json:
        print_json({**summary, "answers": answers.rows})
        return 0
    if len(answers.rows) == 1 and not evaluate:
        print(answers.rows[0]["predicted"])
    else:
        print_answers(answers.rows)
    each = f"{summary['milliseconds_per_question']:.0f} ms each, {answers.device}"
    parts = [f"{count} questions in {answers.seconds:.2f} s ({each})"]
    if evaluate and answers.exact_match is not None:
        parts.append(f"{answers.metric} {100 * answers.exact_match:.1f} %")
    if evaluate and answers.execution_match is not None:
        parts.append(f"same rows from the database {100 * answers.execution_match:.1f} %")
    err_console().print("; ".join(parts))
    if evaluate and (left_out := unscored_words(count, answers.scored, answers.unscored)):
        err_console().print(f"[yellow]note[/yellow]: {escape(left_out)}")
    return 0


def _print_score(answers: Answers, *, as_json: bool) -> int:
    """How well a language model predicts the held-out text."""
    from muster.cli.output import out_console, print_json
    from muster.core.units import format_seconds

    if as_json:
        print_json({**answers.figures, "seconds": answers.seconds, "device": answers.device})
        return 0
    for name, value in answers.figures.items():
        shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
        out_console().print(f"  [dim]{name:<12}[/dim] {shown}")
    out_console().print(f"  [dim]{'time':<12}[/dim] {format_seconds(answers.seconds)}, {answers.device}")
    return 0
