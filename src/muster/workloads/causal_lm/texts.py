"""Text on disk: which files are for training and which are held out, and their documents, piece by piece.

A document is a plain text file, or a row of a file whose rows have fields (muster/store/records.py).
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from muster.core.data import OnBad
from muster.core.errors import DataError
from muster.store.lines import SKIPPABLE, Skipped, each_made, read_lines, text_of
from muster.store.records import SUFFIXES, TRAIN_NAMES, DataFiles, by_part, find_data, is_of, read_rows

PLAIN = (".txt", ".text", ".md", ".rst", ".py", ".raw", ".tokens")
HELD_OUT = ("validation", "valid", "val", "dev", "heldout", "eval", "test")  # the first that is there
PROGRAMS = (".py", ".py.gz")
PIECE = 1 << 16  # characters; see `pieces_of`
_SHARD = re.compile(r"[-_ ]*[0-9]+([-_ ]of[-_ ][0-9]+)?$")  # of a part in several files
_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")
# Of the standard library: what distributions pack apart, or what is of this machine alone.
_NOT_LIBRARY = {
    "__pycache__", "ensurepip", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "test",
    "tests", "tkinter", "turtledemo", "venv",
}  # fmt: skip
_NOT_MODULES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")

Document = Iterator[str]


def find_texts(path: Path) -> DataFiles:
    """Find the training and held-out files of a folder, or a single file. Raises DataError.

    In a folder: what is named train (`train.txt`, `wiki.train.raw`, `train/`) is for training, and the first
    of HELD_OUT that is there is held out; where only files further below are named so, these
    (`data/train-00000.parquet`, `en/train.txt` beside `en/test.txt`). Without anything named train, all files
    are for training but those of a part of just such a name (`valid.txt`, `data/test/`). A held-out part is
    trained on only where `path` is it.
    """
    if path.is_file():
        return DataFiles((path,))
    kinds = ", ".join((*PLAIN, *SUFFIXES[::2]))
    if not path.is_dir():
        raise DataError("no such data", where=str(path), hint=f"a file of {kinds}, or a folder of them")
    visible = [each for each in path.rglob("*") if _is_visible(each, path)]
    files = _text_files(path, visible)
    if not files:
        raise DataError("has no text files", where=str(path), hint=f"files of {kinds}, or .gz of these")
    parts = {file: _words(file.relative_to(path)) for file in files}
    train = tuple(file for file, words in parts.items() if words & set(TRAIN_NAMES))
    if not train and (below := _parts_below(path, visible, files)):
        return below
    if not train:
        parts = {file: _part_names(file.relative_to(path)) for file in files}
        train = tuple(file for file, words in parts.items() if not words & set(HELD_OUT))
    others = {file: words & set(HELD_OUT) for file, words in parts.items() if file not in train}
    if not train:
        names = ", ".join(file.relative_to(path).as_posix() for file in files[:5])
        one = next((file for file, words in parts.items() if "test" not in words), files[0])
        raise DataError(
            f"has no file to train on: {names}",
            where=str(path),
            hint=f"name the one to train on: data.path={one}; or call it train{one.suffix}",
        )
    held = next((held_out for name in HELD_OUT if (held_out := _named(others, name))), ())
    return DataFiles(train, held, tuple(file for file, words in others.items() if words and file not in held))


def _parts_below(path: Path, visible: Sequence[Path], texts: Sequence[Path]) -> DataFiles | None:
    """Return the training and held-out files where names further below say which they are, such as
    `data/train.jsonl`; None: none do. Plain texts count only where both parts are named: `guide/train.md` by
    itself is a text like its neighbours."""
    rows = [each for each in visible if is_of(each, SUFFIXES)]
    if not any(each.parent == path for each in rows) and by_part(path, rows).keys() & set(TRAIN_NAMES):
        return find_data(path)
    parts = by_part(path, [each for each in texts if not is_of(each, PROGRAMS)])
    train, held = (next((name for name in of if name in parts), "") for of in (TRAIN_NAMES, HELD_OUT))
    if not (train and held):
        return None
    unused = (each for each in texts if each not in {*parts[train], *parts[held]})
    return DataFiles(tuple(parts[train]), tuple(parts[held]), tuple(unused))


def _named(words: dict[Path, set[str]], name: str) -> tuple[Path, ...]:
    return tuple(file for file, has in words.items() if name in has)


def library_files() -> tuple[Path, list[Path]]:
    """Find the Python standard library's folder and its sources in order: the same for the same Python
    version."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules: list[Path] = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_LIBRARY and not name.startswith("config-")]
        names = (name for name in files if name.endswith(".py") and not name.startswith(_NOT_MODULES))
        modules += [Path(folder, name) for name in names]
    if not modules:
        raise DataError("has no Python sources", where=str(root), hint="data.path=FILE or FOLDER")
    return root, sorted(modules, key=lambda path: path.relative_to(root).as_posix())


def documents(file: Path, field: str, skip: Callable[[DataError], None] | None = None) -> Iterator[Document]:
    """Yield the documents of a file, each as its pieces; read one before the next. gzip by its name.

    `skip` gets the error of each line that cannot be read, which is left out; None: DataError is raised, with
    the file and the line.
    """
    if not is_of(file, SUFFIXES):
        yield _pieces(read_lines(file, skip, way=SKIPPABLE))
        return
    rows = read_rows(file, skip, fields=(field,))
    yield from each_made(rows, lambda row, where: iter((text_of(row, field, where, "data.field"),)), skip)


def check_texts(path: Path, field: str, bad: OnBad, most: int) -> int:
    """Read the files, up to `most` bytes of them on disk. Raises DataError, also where there is no text.

    -> at most so many tokens are to be trained on: one a byte, and two for the ends of each document.
    """
    files = find_texts(path)
    skipped = Skipped()
    tokens = 0
    for part in (files.train, files.validation):
        pieces = read = 0
        for file in part:
            for document in documents(file, field, skipped.where(bad)):
                size = 2
                for piece in document:
                    pieces += bool(piece.strip())
                    size += len(piece.encode())
                tokens += size if part is files.train else 0
            if not pieces and len(part) == 1:
                why = f"; {skipped.count} skipped, the first: {skipped.first}" if skipped.count else ""
                raise DataError(f"has no text{why}", where=str(file))
            read += file.stat().st_size
            if read > most:
                break
        if part and not pieces:
            raise DataError(f"its {len(part)} files have no text", where=str(path))
    return tokens


def pieces_of(text: str) -> Iterator[str]:
    """Cut text into pieces of PIECE to 2 * PIECE characters, the last one shorter."""
    start = 0
    while len(text) - start > 2 * PIECE:
        low, high = start + PIECE, start + 2 * PIECE
        line_end = _LINE_END.search(text, low, high)
        end = line_end.start() + 1 if line_end else text.rfind("\n", low, high) + 1
        end = end or high
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _pieces(lines: Iterator[tuple[int, str]]) -> Document:
    waiting: list[str] = []
    size = 0
    for _, line in lines:
        waiting.append(line)
        size += len(line)
        if size > 4 * PIECE:
            *ready, rest = pieces_of("".join(waiting))
            yield from ready
            waiting, size = [rest], len(rest)
    yield from pieces_of("".join(waiting))


def _text_files(folder: Path, visible: Sequence[Path]) -> list[Path]:
    """Pick the plain text files of a folder; files of rows where there are none, or where those are named
    train."""
    suffixes = tuple(suffix + end for suffix in PLAIN for end in ("", ".gz"))
    plain = [path for path in visible if is_of(path, suffixes)]
    lines = [path for path in visible if is_of(path, SUFFIXES)]
    named = [path for path in lines if _words(path.relative_to(folder)) & set(TRAIN_NAMES)]
    chosen = plain if plain and not named else lines
    return sorted(chosen, key=lambda path: path.relative_to(folder).as_posix())


def _is_visible(path: Path, folder: Path) -> bool:
    """Return whether it is a file below a folder, and nothing that tools keep for themselves."""
    hidden = (part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
    return path.is_file() and not any(hidden)


def _words(path: Path) -> set[str]:
    """Divide the first part of a path into words: wiki.train-00.txt -> wiki, train, 00, txt. Nothing for a
    program: train.py is text like its neighbours."""
    if len(path.parts) == 1 and is_of(path, PROGRAMS):
        return set()
    name = path.parts[0].lower()
    for sign in "._- ":
        name = name.replace(sign, "/")
    return set(name.split("/"))


def _part_names(path: Path) -> set[str]:
    """Name the parts that a file may be: `test` for test.txt, test/1.txt, data/test-00001.txt and
    wiki.test.raw, not for test_drive.txt. Nothing for a program."""
    if is_of(path, PROGRAMS):
        return set()
    return {_SHARD.sub("", word) for part in path.parts for word in part.lower().split(".")}
