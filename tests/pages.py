"""The README and the pages of docs/, cut into what tests look at: paragraphs, links, fenced blocks, commands.

A fenced block says what it is in its first line, after the language:

    ```console                      commands, each of which a test runs as it stands
    ```console needs: torch, hosts  commands that need more: parsed, and tried as a dry run
    ```yaml my.yaml                 a file that the page's commands use
    ```python                       run by a test
    ``` or ```text                  output, or a picture made of characters: no commands
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.images import write_folder

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What a command may need that a unit test does not have.
NEEDS = {
    "torch", "hosts", "GPUs", "network", "a run", "logs", "Slurm", "minutes", "this check", "this workload"
}  # fmt: skip
PROGRAMS = ("muster", "make", "pip", "python", "python3", "deepspeed", "torchrun", "mpirun", "srun")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, the rest of its first line, its text."""

    page: Path
    line: int
    language: str
    words: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> set[str]:
        """What the commands need; empty where a test runs them."""
        head, colon, names = self.words.partition("needs:")
        return {name.strip() for name in names.split(",")} if colon and not head.strip() else set()

    @property
    def file(self) -> str | None:
        """The name of the file that this block is."""
        return self.words if self.words and not self.words.startswith("needs:") else None

    @cached_property
    def commands(self) -> list[str]:
        """Commands without `$`, continued lines joined; where any line has `$`, the others are output."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if any(line.lstrip().startswith("$ ") for line in lines):
            lines = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def install(page: Path, folder: Path, more: str = "") -> None:
    """The project that a page builds, as if it was installed into a folder. `more`: entry points of its last
    group beside its own."""
    for block in blocks(page):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    offer(folder, more)


def offer(folder: Path, more: str = "") -> None:
    """What the pyproject.toml of a folder offers by entry points, as if it was installed."""
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    table = r"^\[project\.entry-points\.\"([\w.]+)\"\]\n((?:[\w-]+ = .+\n)+)"
    points = "".join(f"[{group}]\n{each}" for group, each in re.findall(table, project, re.MULTILINE))
    assert points
    distribution(folder, "page", points.replace('"', "") + more)


def distribution(folder: Path, name: str, entry_points: str) -> None:
    """An installed package of a folder on the path, as far as entry points are looked for."""
    about = folder / f"{name.replace('-', '_')}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(entry_points)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found, start, head, body = [], 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = line.lstrip().startswith("```")
        if fence and not start:
            start, head, body = number, line.strip().lstrip("`"), []
        elif fence:
            language, _, words = head.partition(" ")
            found.append(Block(page, start, language, words.strip(), "\n".join(body) + "\n"))
            start = 0
        elif start:
            body.append(line)
    assert not start, f"{page.name}:{start}: the block is not closed"
    return found


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows. The few samples of a data file stand for many."""
    for block in blocks(page):
        if block.file:
            head, samples = "", block.text
            if block.language == "csv":
                head, _, samples = block.text.partition("\n")
            often = 50 if Path(block.file).suffix in (".csv", ".jsonl") else 1
            write_folder(folder, {block.file: (head + "\n" * bool(head) + samples * often).encode()})


def prose(page: Path) -> list[tuple[int, str]]:
    """(number, line) of what is in no fenced block."""
    inside, found = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            found.append((number, line))
    return found


def paragraphs(page: Path) -> list[tuple[int, str]]:
    """(number of the first line, text) of each paragraph and item of a list; not of tables and headings."""
    found: list[tuple[int, str]] = []
    last = ""
    for number, line in prose(page):
        text = line.strip()
        item = re.match(r"([-*]|\d+\.) ", text)
        if not text or text.startswith(("|", "#", "!", "<")):
            last = ""
        elif item or not last:
            found.append((number, text))
            last = text
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
    return found


def argv_of(command: str) -> tuple[dict[str, str], list[str]]:
    """A command's variables and words, without its comment and where its output goes."""
    words = shlex.split(command, comments=True)
    words = words[: next((n for n, word in enumerate(words) if word in (">", ">>", "2>", "|")), len(words))]
    variables = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    return variables, words
