"""Text of others on a terminal: shown, and not obeyed."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import muster.cli
from muster.cli import output
from muster.cli.app import main
from muster.cli.console import SafeConsole
from muster.core.printable import printable, spelt_out

TITLE, CLEAR, CLIP = "\x1b]0;owned\x07", "\x1b[2J", "\x1b]52;c;Y3VybA==\x07"
HOSTILE = f"n1{TITLE}{CLEAR}\x9b2J\u202e\u2066{CLIP}\r"
BAD = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\x00")


def harmless(text: str) -> bool:
    return not any(each in text for each in BAD)


def test_what_is_no_command_stays() -> None:
    text = "naïve 日本語 😀👩‍💻\u00a0|\tend\n"
    assert printable(text) == text
    assert harmless(printable(HOSTILE)) and "owned" in printable(HOSTILE)
    assert json.loads(spelt_out(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE


def test_a_console_shows_them_however_they_come() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, width=60, color_system=None)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE))
    for each in (
        HOSTILE,
        Text(HOSTILE),
        f"[red]{HOSTILE}[/red]",
        table,
        Text.assemble("a", (HOSTILE, "bold")),
    ):
        console.print(each)
    assert harmless(file.getvalue()) and file.getvalue().count("owned") >= 7
    coloured = io.StringIO()
    SafeConsole(file=coloured, force_terminal=True, color_system="standard").print("[red]x[/red]")
    assert "\x1b[31m" in coloured.getvalue()  # its own are as ever


def test_nothing_else_prints() -> None:
    """All that is printed goes by cli/output.py."""
    for file in Path(muster.cli.__path__[0]).glob("*.py"):
        if file.name in ("output.py", "console.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = (
                getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            )
            plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and name == "print"
            assert not plain and name not in ("Console", "echo", "secho"), f"{file.name}:{node.lineno}"  # type: ignore[attr-defined]


def test_errors_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([f"r{HOSTILE}"], [f"r{HOSTILE}", "--json"]):
        with pytest.raises(SystemExit):
            main(["train", *words, "--hosts", "local:1"])
        said = capsys.readouterr()
        assert harmless(said.out + said.err) and "owned" in said.err


def test_verbs_that_show_what_others_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of logs, and a run folder, of a host that means harm."""
    (logs := tmp_path / "logs").mkdir()
    (logs / f"job{CLEAR}.log").write_text(
        f"{HOSTILE}: Traceback (most recent call last):\nRuntimeError: CUDA error {HOSTILE}\n" * 3
    )
    run = tmp_path / "runs" / "r1"
    (run / "logs").mkdir(parents=True)
    job = {
        "recipe": {"model": {"name": HOSTILE}, "engine": {"name": HOSTILE}},
        "placements": [{"host": HOSTILE}],
    }
    (run / "job.json").write_text(json.dumps(job))
    (run / "logs" / f"{CLEAR}.log").write_text(HOSTILE)
    for words in (
        ["judge", str(logs)],
        ["judge", str(logs), "--json"],
        ["ls", "--runs", str(tmp_path / "runs")],
        ["show", str(run)],
        ["check", f"n1{TITLE}"],
        ["plan", f"x{TITLE}", "--on", f"a100{CLEAR}:1x1"],
    ):
        with pytest.raises(SystemExit):
            main(words)
        said = capsys.readouterr()
        assert said.out + said.err and harmless(said.out + said.err), words


def test_secrets_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("https://me:hunter2@host")
    output.print_json({"a": "https://me:hunter2@host"})
    output.fail("https://me:hunter2@host", None, as_json=False, code=1)
    said = capsys.readouterr()
    assert (said.out + said.err).count("me:(hidden)@host") == 3 and "hunter2" not in said.out + said.err
