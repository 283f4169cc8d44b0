"""A folder of code that is sent to hosts: its files, without those that .gitignore names, and one digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from muster.core.errors import RecipeError
from muster.core.units import format_bytes

NEVER = (".git", ".hg", ".svn", "__pycache__")
IGNORE = ".gitignore"
MOST = 2 << 30  # bytes: more is data, and no code
_READ = 1 << 20


@dataclass(frozen=True)
class TreeFile:
    """A file: its path below the folder with slashes, its mode, the SHA-256 of its content, its size in
    bytes."""

    path: str
    mode: int
    digest: str
    size: int


@dataclass(frozen=True)
class Tree:
    """The files of a folder, by path."""

    folder: Path
    files: tuple[TreeFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of all paths, modes and contents, in the order of the paths."""
        lines = (f"{each.mode:o} {each.digest} {each.path}\n" for each in self.files)
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    def write(self, target: Path) -> None:
        """Write a copy of the tree. Raises OSError, and RecipeError where a file has changed since it was
        read."""
        for each in self.files:
            path = target / each.path
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / each.path, path)
            path.chmod(each.mode)
            if fingerprint(path)[1] != each.digest:
                raise RecipeError("changed while it was brought", where=str(self.folder / each.path))


def read_tree(folder: Path, but: Path | None = None) -> Tree:
    """Return the files of a folder and its subfolders, except those in the folder `but`. Files that a
    .gitignore there or above names are left out, as are version control's own files; a link stands for its
    target. Raises RecipeError."""
    files, size = [], 0
    away = but.resolve() if but is not None else None
    for path in sorted(_walk(folder, PurePosixPath(), [], away)):
        try:
            mode, digest, length = fingerprint(folder / path)
        except OSError as error:
            raise RecipeError(f"cannot be read: {error.strerror}", where=str(folder / path)) from None
        size += length
        if size > MOST:
            raise RecipeError(
                f"has more than {format_bytes(MOST)}",
                where=str(folder),
                hint=f"name what is no code in its {IGNORE}; data belongs on a disk that all hosts have",
            )
        files.append(TreeFile(path, mode, digest, length))
    if not files:
        raise RecipeError("has no files to bring", where=str(folder))
    return Tree(folder, tuple(files))


def _walk(
    root: Path,
    below: PurePosixPath,
    rules: list[tuple[PurePosixPath, GitIgnoreSpec]],
    away: Path | None,
) -> Iterator[str]:
    """Yield paths of files; `rules`: those of the folders above, the outermost first."""
    here = root / below
    try:
        text = (here / IGNORE).read_text(encoding="utf-8", errors="surrogateescape")
        rules = [*rules, (below, GitIgnoreSpec.from_lines(text.splitlines()))]
    except OSError:
        pass
    try:
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise RecipeError(f"cannot be read: {error.strerror}", where=str(here)) from None
    for entry in entries:
        path = below / entry.name
        folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER or _ignored(path, folder, rules):
            continue
        if folder:
            if away is None or (root / path).resolve() != away:
                yield from _walk(root, path, rules, away)
        elif entry.is_file():  # not what is neither, nor a link to a folder or to nothing
            yield str(path)


def _ignored(path: PurePosixPath, folder: bool, rules: list[tuple[PurePosixPath, GitIgnoreSpec]]) -> bool:
    """Decide as git does: by the last pattern that matches, of the innermost file that has one."""
    for where, spec in reversed(rules):
        excluded = spec.check_file(str(path.relative_to(where)) + "/" * folder).include
        if excluded is not None:
            return excluded
    return False


def fingerprint(path: Path) -> tuple[int, str, int]:
    """Return mode, digest and size in bytes of a file. Raises OSError."""
    made, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        mode = 0o755 if os.fstat(file.fileno()).st_mode & stat.S_IXUSR else 0o644
        while block := file.read(_READ):
            made.update(block)
            size += len(block)
    return mode, made.hexdigest(), size
