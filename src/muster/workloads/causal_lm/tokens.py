"""The token cache: a data set's tokens on this machine's disk, made once and mapped into memory by all ranks.

A folder per data set, tokenizer and settings (its name is their hash): train.bin, validation.bin, tokenizer/
and meta.json. It is made beside, synced, and renamed when it is whole: a maker that was killed leaves nothing
that looks finished. A lock that the kernel gives back with its process keeps others waiting meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch.utils.data import Dataset

from muster.core.errors import DataError
from muster.store.atomic import write_json
from muster.worker.data.tokenizer import train_text_tokenizer
from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts
from muster.workloads.causal_lm.sources import TextSource

VERSION = 2  # of the folder's layout, and of how files become text
TOKENIZER_TEXT = 64 << 20  # characters of text, at the most, that a tokenizer is trained on
BATCH = 1 << 21  # characters that are tokenized in one call
BLOCK = 1 << 22  # tokens, or bytes, that are copied or checked at a time


@dataclass(frozen=True)
class Tokenizing:
    """How text becomes tokens: with `tokenizer`, or with one of `vocab_size` entries trained on the text."""

    tokenizer: Any | None
    vocab_size: int
    fraction: float  # held out where the source has no part of its own


@dataclass(frozen=True)
class Tokens:
    """What is in a cache folder."""

    folder: Path
    meta: dict[str, Any]
    tokenizer: Any

    def part(self, name: str) -> tuple[Path, str, int]:
        """Return path, dtype and number of tokens of `train` or `validation`."""
        return self.folder / f"{name}.bin", self.meta["dtype"], self.meta["parts"][name]["tokens"]

    @property
    def digest(self) -> str:
        """What is equal where the tokens are."""
        parts = [self.meta["files"][f"{name}.bin"]["crc32"] for name in ("train", "validation")]
        return f"{self.meta['parts']['train']['tokens']:,} tokens, {parts[0]:08x}.{parts[1]:08x}"


def open_tokens(source: TextSource, how: Tokenizing, root: Path) -> Tokens:
    """Open the tokens of a source, made first where this machine does not have them whole. Raises
    DataError."""
    folder = root / key_of(source, how)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            tokens = _read(folder, how)
            if tokens is None:
                _make(folder, source, how)
                tokens = _read(folder, how)
    except PermissionError as error:
        raise DataError(
            f"the token cache cannot be written: {error.strerror}",
            where=str(root),
            hint="launch.workdir=FOLDER that can be",
        ) from None
    if tokens is None:
        raise DataError("the token cache was damaged as it was written", where=str(folder))
    return tokens


def key_of(source: TextSource, how: Tokenizing) -> str:
    """Hash everything that decides the tokens."""
    tokenizer = fingerprint(how.tokenizer) if how.tokenizer is not None else how.vocab_size
    content = [VERSION, source.identity, tokenizer, how.fraction]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def fingerprint(tokenizer: Any) -> str:
    """Hash a tokenizer, so that another one has another hash."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(f"{tokenizer.eos_token_id} {text}".encode()).hexdigest()


def _read(folder: Path, how: Tokenizing) -> Tokens | None:
    """Read the folder's content where it is whole; None where it has to be made."""
    from transformers import AutoTokenizer

    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if not all(_is_whole(folder / name, about) for name, about in meta["files"].items()):
            return None
        tokenizer = how.tokenizer
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
        return Tokens(folder, meta, tokenizer) if meta["parts"].keys() >= {"train", "validation"} else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_whole(path: Path, about: dict[str, int]) -> bool:
    """Compare size and time with those when the file was made; if only the time differs, its content is
    read."""
    stat = path.stat()
    if stat.st_size != about["size"]:
        return False
    return stat.st_mtime_ns == about["mtime_ns"] or _crc(path) == about["crc32"]


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def _make(folder: Path, source: TextSource, how: Tokenizing) -> None:
    """Write the folder. The caller holds its lock: no process uses other folders of its name any more."""
    for left in folder.parent.glob(f"{folder.name}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".partial"))
    try:
        _fill(partial, source, how)
        if folder.exists():  # damaged; whoever has it open keeps what is mapped
            folder.replace(partial.with_name(f"{folder.name}.old.partial"))
        partial.replace(folder)
        shutil.rmtree(folder.parent / f"{folder.name}.old.partial", ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fill(folder: Path, source: TextSource, how: Tokenizing) -> None:
    folder.chmod(0o755)  # mkdtemp's own mode is 0700
    tokenizer = how.tokenizer
    if tokenizer is None:
        tokenizer = train_text_tokenizer(_first(source, TOKENIZER_TEXT), how.vocab_size)
        tokenizer.save_pretrained(str(folder / "tokenizer"))
    dtype = "uint16" if len(tokenizer) <= 1 << 16 else "uint32"
    source.skipped.clear()  # the tokenizer's pass met the same texts
    train = _write(folder / "train.bin", source.train(), tokenizer, dtype)
    if not train:
        raise DataError("has no text", where=source.about)
    held: array[int] = array("q")
    if source.validation is not None:
        held = _write(folder / "validation.bin", source.validation(), tokenizer, dtype)
    split = "a part of its own"
    if not held and not how.fraction:
        split = "nothing: data.validation_fraction=0"
        (folder / "validation.bin").touch()
    elif not held:
        split, train, held = _split(folder, dtype, train, how.fraction)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = {
        name: {"tokens": sum(lengths), "documents": len(lengths)}
        for name, lengths in (("train", train), ("validation", held))
    }
    skipped = {"count": source.skipped.count, "first": source.skipped.first}
    write_json(
        folder / "meta.json",
        {
            "about": source.about,
            "dtype": dtype,
            "parts": parts,
            "split": split,
            "skipped": skipped,
            "files": {path.relative_to(folder).as_posix(): _settle(path) for path in files},
        },
    )


def _settle(path: Path) -> dict[str, int]:
    """Sync a file to the disk. -> its size, time and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "crc32": _crc(path)}


def _first(source: TextSource, most: int) -> Iterator[str]:
    """Yield the training text's first pieces."""
    size = 0
    for document in source.train():
        for piece in document:
            if size < most:
                size += len(piece)
                yield piece
        if size >= most:
            return


def _write(path: Path, documents: Iterable[Iterator[str]], tokenizer: Any, dtype: str) -> array[int]:
    """Write documents as tokens, each with the end token behind it. -> their lengths; empty ones are left
    out."""
    lengths: array[int] = array("q")
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    length = 0
    with path.open("wb") as file:
        for batch in _batches(documents):
            texts = [text for text in batch if text is not None]
            rows = iter(
                tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
            )
            out: list[int] = []
            for text in batch:
                if text is not None:
                    row = next(rows)
                    out += row
                    length += len(row)
                elif length:
                    out += ends
                    lengths.append(length + len(ends))
                    length = 0
            np.array(out, dtype=dtype).tofile(file)
    return lengths


def _batches(documents: Iterable[Iterator[str]]) -> Iterator[list[str | None]]:
    """Yield pieces, and None where a document ends; enough for one call of the tokenizer."""
    batch: list[str | None] = []
    size = 0
    for document in documents:
        for piece in document:
            if piece:
                batch.append(piece)
                size += len(piece)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        batch.append(None)
    yield batch


def _split(
    folder: Path, dtype: str, lengths: array[int], fraction: float
) -> tuple[str, array[int], array[int]]:
    """Hold out documents, spread evenly over all; of fewer than that takes, the last part of the text.

    -> in words, the lengths of the rest, the lengths of what is held out.
    """
    whole = folder / "whole.bin"
    (folder / "train.bin").replace(whole)
    sizes = np.frombuffer(lengths, dtype=np.int64)
    if len(sizes) * fraction >= 1:
        marks = np.floor((np.arange(len(sizes) + 1)) * fraction + 0.5)
        held = marks[1:] > marks[:-1]
        words = f"{int(held.sum()):,} of its {len(sizes):,} documents"
    else:
        last = int(sizes.sum() * fraction)
        sizes = np.array([int(sizes.sum()) - last, last], dtype=np.int64)
        held = np.array([False, True])
        words = f"the last {100 * fraction:g} % of it"
    with (folder / "train.bin").open("wb") as rest, (folder / "validation.bin").open("wb") as apart:
        mapped = np.memmap(whole, dtype=dtype, mode="r")
        start = 0
        for size, out in zip(sizes.tolist(), held.tolist(), strict=True):
            for begin in range(start, start + size, BLOCK):
                mapped[begin : min(begin + BLOCK, start + size)].tofile(apart if out else rest)
            start += size
        del mapped
    whole.unlink()
    return words, array("q", sizes[~held].tolist()), array("q", sizes[held].tolist())


# ----------------------------------------------------------------------------------------------------
# Sequences of equal length, and their batches: packed text, or synthetic tokens.

Row = dict[str, Any]


class Packed(Dataset[Row]):  # type: ignore[misc]
    """A file of tokens as rows of `sequence`; the last incomplete one is left out.

    The file is mapped into memory when the first row is read: a loader's process gets the path alone.
    """

    def __init__(self, path: Path, dtype: str, tokens: int, sequence: int, limit: int | None = None) -> None:
        self.path, self.dtype, self.tokens, self.sequence, self.limit = path, dtype, tokens, sequence, limit
        whole = tokens // sequence
        self.rows = whole if limit is None else min(whole, limit)
        self.left_out = tokens % sequence
        self._mapped: Any = None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Row:
        """Return (sequence,) int64 tokens."""
        if not 0 <= index < self.rows:
            raise IndexError(index)
        if self._mapped is None:
            self._mapped = np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.tokens,))
        start = index * self.sequence
        return {"tokens": self._mapped[start : start + self.sequence].astype(np.int64)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}


class SyntheticTokens(Dataset[Row]):  # type: ignore[misc]
    """Random tokens, made when they are asked for: row i of a seed is the same everywhere and at any time.

    Philox's counter-based stream (Salmon et al. 2011) with the seed and the row as its key; numpy promises
    the raw stream of a bit generator for all its versions.
    """

    def __init__(self, rows: int, sequence: int, vocab_size: int, seed: int, *, held_out: bool) -> None:
        self.rows, self.sequence, self.vocab_size, self.seed = rows, sequence, vocab_size, seed
        self.part = int(held_out)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Row:
        """Return (sequence,) int64 tokens below vocab_size."""
        if not 0 <= index < self.rows:
            raise IndexError(index)
        key = np.array([self.seed % 2**64, index], dtype=np.uint64)
        raw = np.random.Philox(key=key, counter=[0, 0, 0, self.part]).random_raw(self.sequence)
        return {"tokens": (raw % np.uint64(self.vocab_size)).astype(np.int64)}


def collate(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Stack rows to (batch, sequence) input_ids and labels. A label stands at its own token's place, as
    Transformers has it (the loss moves it); the first of a row has nothing before it and is ignored."""
    inputs = torch.from_numpy(np.stack([row["tokens"] for row in rows]))
    labels = inputs.clone()
    labels[:, 0] = IGNORED
    for index, row in enumerate(rows):
        if row.get("ignored"):
            labels[index] = IGNORED
    return {"input_ids": inputs, "labels": labels}


def count_batch(inputs: Mapping[str, Any]) -> Counts:
    """Count every token of a packed row as real."""
    rows = inputs["input_ids"]
    return Counts(int(rows.shape[0]), rows.numel(), rows.numel())
