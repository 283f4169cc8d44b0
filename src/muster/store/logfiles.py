"""Log files of other tools: folders, compressed files and archives, read line by line in little memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import stat
import tarfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from muster.core.errors import UsageError

CHUNK = 1 << 20  # bytes
LONGEST_LINE = 1 << 18  # characters; what is longer is cut there: no figure stands so far from a line's start
_HEAD = 8192  # bytes by which a file is known for text
_TEXT = bytes([*b"\t\n\r\x0c\x08\x1b", *range(32, 256)])  # what texts are made of
# By their first bytes, whatever they are called.
_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes]], io.BufferedIOBase]], ...] = (
    (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
)
_ARCHIVE = re.compile(r"\.(?:tar|tgz|txz|tbz2?|tar\.(?:gz|xz|bz2))$", re.IGNORECASE)
_DOCKER = '{"log":"'  # how a line of docker's json-file driver begins
_TEXT_OF = re.compile(r'\{"log":"((?:[^"\\]|\\.)*)|((?:[^"\\]|\\.)*)","stream":"std')  # of one, or of its end
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, ValueError)


class BrokenFile(Exception):
    """The rest of a file cannot be read; the text is the reason. An iterator of lines raises it at that
    place."""


@dataclass(frozen=True)
class LogFile:
    """A log file, or an archive of some; `shown`: its path below the folder that was given."""

    path: Path
    shown: str
    archive: bool
    size: int


class Lines(list[str]):
    """Consecutive lines. `first`: the number of the first line as editors count; `text`: all of them, where a
    lone CR ended some, as in a progress bar."""

    first: int = 1
    text: str = ""

    @cached_property
    def bare(self) -> list[int]:
        """Indices of the lines that a lone CR ended: an editor counts them as one line with the next."""
        places: list[int] = []
        for number, line in enumerate(self.text.split("\n")):
            place = len(places) + number
            places += range(place, place + line.count("\r"))
        return places

    def number(self, place: int) -> int:
        """Return the number of the line at an index."""
        return self.first + place - bisect_left(self.bare, place)

    def until(self, place: int) -> Lines:
        """Return the lines before an index."""
        part = Lines(self[:place])
        part.first = self.first
        part.bare = [each for each in self.bare if each < place]
        return part

    def since(self, place: int) -> Lines:
        """Return the lines from an index on."""
        rest = Lines(self[place:])
        rest.first = self.number(place)
        rest.bare = [each - place for each in self.bare if each >= place]
        return rest


def find_logs(where: Path) -> list[LogFile]:
    """Return the regular files in a folder and its subfolders, sorted by name; or the one file given.

    Hidden files are left out; links to folders are not followed. Raises UsageError where there are none.
    """
    if not where.exists():
        raise UsageError("no such file or folder", where=str(where))
    if not where.is_dir():
        files = [_logfile(where, where.name)]
    else:
        files = []
        for folder, folders, names in os.walk(where):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                path = Path(folder, name)
                files.append(_logfile(path, str(path.relative_to(where))))
    regular = [each for each in files if each is not None]
    if not regular:
        what = "there are no files in it" if where.is_dir() else "is neither a folder nor a regular file"
        raise UsageError(what, where=str(where))
    return regular


def blocks_of(file: LogFile) -> Iterator[list[str]]:
    """Yield a file's lines. Raises BrokenFile where it cannot be opened, is no text, or ends too early."""
    try:
        with file.path.open("rb") as raw:
            yield from blocks(raw)
    except OSError as error:
        raise BrokenFile(f"cannot be read: {error.strerror or error}") from None


def members_of(file: LogFile) -> Iterator[tuple[str, Iterator[list[str]]]]:
    """Yield path and lines of an archive's files, in their order. The lines of each must be read before the
    next.

    A broken archive has a last member that raises BrokenFile; its path is the archive's.
    """
    try:
        # tarfile's own decompression takes a stream that was cut for one that ends.
        with file.path.open("rb") as raw, tarfile.open(fileobj=_opened(raw), mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and not name.rpartition("/")[2].startswith("."):
                    stream = archive.extractfile(member)
                    if stream is not None:
                        yield f"{file.shown}/{name}", blocks(stream)
            # An archive ends with blocks of zeros; tarfile is content where there is simply nothing more.
            if archive.fileobj is not None and archive.fileobj.tell() < archive.offset + tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it stops without the mark of an archive's end")
    except _BROKEN as error:
        yield file.shown, _broken(f"cannot be read to its end: {error}")


def blocks(raw: IO[bytes], first: int = 1) -> Iterator[Lines]:
    """Yield the lines of a stream of bytes, some at a time, without their ends. Invalid UTF-8 is replaced; CR
    ends a line as LF does (progress bars); each line is cut at LONGEST_LINE. `first`: the number of the
    stream's first line. Raises BrokenFile."""
    try:
        stream = _opened(raw)
        head = stream.read(_HEAD)
        if not _encoding(head).startswith("utf-16") and _binary(head):
            raise BrokenFile("is no text")
        decoder = io.IncrementalNewlineDecoder(None, translate=False)  # keeps a CR LF together
        text = codecs.getincrementaldecoder(_encoding(head))(errors="replace")
        docker = b"\n" + _DOCKER.encode() in b"\n" + head
        rest, block = "", head
        while block:
            whole = rest + decoder.decode(text.decode(block)).replace("\x00", "")
            if docker:
                body, end, rest = whole.rpartition("\n")
                whole = f"{_printed(body)}{end}{rest}"
            full = _lines(whole, first)
            rest = full.pop()[:LONGEST_LINE]
            first += len(full) - full.text.count("\r")
            yield full
            block = stream.read(CHUNK)
        rest += decoder.decode(text.decode(b"", final=True), final=True)
        # A CR at the very end is known for a line's end only now.
        full = _lines(_printed(rest) if docker else rest, first)
        if not full[-1]:
            full.pop()
        yield full
    except _BROKEN as error:
        raise BrokenFile(f"cannot be read to its end: {error}") from None


def _printed(whole: str) -> str:
    """Return the output of a container from docker's lines {"log": ..., "stream": ..., "time": ...}, also of
    one that was cut; other lines are left as they are."""
    return "\n".join(map(_printed_of, whole.split("\n")))


def _printed_of(line: str) -> str:
    match = _TEXT_OF.match(line)
    if match is None:
        return "" if _DOCKER.startswith(line) else line
    text = re.sub(r"\\u[0-9a-fA-F]{0,3}$", "", match[match.lastindex or 0])  # half a character
    try:
        return str(json.loads(f'"{text}"')).removesuffix("\n").replace("\n", " ")
    except ValueError:
        return line


def _lines(whole: str, first: int) -> Lines:
    """Return a text's lines, the last one without its end, each cut at LONGEST_LINE."""
    bars = "\r" in whole
    if bars:
        whole = whole.replace("\r\n", "\n")
    full = Lines((whole.replace("\r", "\n") if bars else whole).split("\n"))
    if max(map(len, full)) > LONGEST_LINE:
        full[:] = [line[:LONGEST_LINE] for line in full]
    full.first, full.text = first, whole if bars else ""
    return full


def _opened(raw: IO[bytes]) -> io.BufferedIOBase:
    """Return the stream, decompressed where its first bytes are those of a compressed file."""
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)  # type: ignore[type-var]
    head = buffered.peek(8)
    for magic, opener in _OPENERS:
        if head.startswith(magic):
            return opener(buffered)
    return buffered


def _encoding(head: bytes) -> str:
    """Return the encoding of a text. PowerShell writes UTF-16, with a byte order mark; without the mark,
    every other byte is zero."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding, zeros, others in (
        ("utf-16-le", head[1::2], head[::2]),
        ("utf-16-be", head[::2], head[1::2]),
    ):
        if 10 * zeros.count(0) > 9 * len(zeros) > 0 and not _binary(others):
            return encoding
    return "utf-8-sig"


def _binary(head: bytes) -> bool:
    """Return whether these bytes are no text: more than a few are control characters."""
    return len(head.translate(None, _TEXT)) * 20 > len(head)


def _broken(why: str) -> Iterator[list[str]]:
    yield from ()  # a generator: it is raised where lines are read
    raise BrokenFile(why)


def _logfile(path: Path, shown: str) -> LogFile | None:
    try:
        status = path.stat()
    except OSError:  # a link to nowhere
        return None
    if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever
        return None
    return LogFile(path, shown, bool(_ARCHIVE.search(path.name)), status.st_size)
