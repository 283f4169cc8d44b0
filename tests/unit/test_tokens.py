"""The token cache: made once, by one of many, and whole or not there. Real processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np

from muster.core.errors import DataError
from muster.worker.data.tokenizer import TEXT_END, train_text_tokenizer
from muster.workloads.causal_lm.sources import TextSource, source_of
from muster.workloads.causal_lm.spec import TextData
from muster.workloads.causal_lm.tokens import Packed, Tokenizing, Tokens, open_tokens

HOW = Tokenizing(None, 300, 0.1)
TEXTS = [f"document {i}: def f{i}(x):\n    return x + {i}\n" for i in range(40)]
fork = multiprocessing.get_context("fork")


def source(texts: list[str] = TEXTS, read: Callable[[], None] = lambda: None, **identity: Any) -> TextSource:
    """Documents in memory; `read` is called when they are read."""

    def train() -> Iterator[Iterator[str]]:
        read()
        for text in texts:
            yield iter((text[:8], text[8:]))  # between two words: the tokens of the whole

    return TextSource("texts", {"texts": texts, **identity}, train, None)


def values(tokens: Tokens, name: str) -> list[int]:
    path, dtype, count = tokens.part(name)
    found: list[int] = np.fromfile(path, dtype=dtype).tolist()
    assert len(found) == count
    return found


def test_every_document_ends_and_is_on_one_side(tmp_path: Path) -> None:
    tokens = open_tokens(source(["", *TEXTS]), HOW, tmp_path)
    end = tokens.tokenizer.eos_token_id
    sides = {}
    for name in ("train", "validation"):
        text = tokens.tokenizer.decode(values(tokens, name), clean_up_tokenization_spaces=False)
        sides[name] = text.split(TEXT_END)[:-1]
        assert values(tokens, name).count(end) == len(sides[name])
        assert values(tokens, name)[-1] == end
    assert len(sides["validation"]) == 4
    assert sorted(sides["train"] + sides["validation"]) == sorted(TEXTS)
    assert tokens.meta["parts"]["train"]["documents"] == 36


def test_of_few_documents_the_end_is_held_out(tmp_path: Path) -> None:
    tokens = open_tokens(source(["".join(TEXTS)]), HOW, tmp_path)
    together = values(tokens, "train") + values(tokens, "validation")
    text = tokens.tokenizer.decode(together, clean_up_tokenization_spaces=False)
    assert text == "".join(TEXTS) + TEXT_END
    assert len(values(tokens, "validation")) == len(together) // 10
    with pytest.raises(DataError, match="has no text"):
        open_tokens(source(["", ""]), HOW, tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_nothing_is_held_out_where_no_share_is(tmp_path: Path) -> None:
    tokens = open_tokens(source(), Tokenizing(None, 300, 0.0), tmp_path)
    assert tokens.meta["parts"]["train"]["documents"] == len(TEXTS)
    assert tokens.meta["parts"]["validation"] == {"tokens": 0, "documents": 0}
    assert not len(Packed(*tokens.part("validation"), 16))


def test_what_decides_the_tokens_decides_the_folder(tmp_path: Path) -> None:
    own = train_text_tokenizer(TEXTS, 300)
    first = open_tokens(source(), HOW, tmp_path)
    assert open_tokens(source(), HOW, tmp_path).folder == first.folder
    other = [
        open_tokens(source(TEXTS[:-1]), HOW, tmp_path),
        open_tokens(source(), Tokenizing(None, 310, 0.1), tmp_path),
        open_tokens(source(), Tokenizing(None, 300, 0.2), tmp_path),
        open_tokens(source(), Tokenizing(own, 0, 0.1), tmp_path),
    ]
    assert len({first.folder, *(each.folder for each in other)}) == 5
    assert values(other[3], "train") == values(first, "train")  # the same texts give the same tokenizer
    assert other[0].digest != first.digest == other[3].digest


def test_large_vocabularies_need_wider_numbers(tmp_path: Path) -> None:
    own = train_text_tokenizer(TEXTS, 300)
    assert open_tokens(source(), Tokenizing(own, 0, 0.1), tmp_path).meta["dtype"] == "uint16"
    own.add_tokens([f"<{i}>" for i in range(70_000)])
    wide = open_tokens(source([*TEXTS, "<69999>"]), Tokenizing(own, 0, 0.1), tmp_path)
    assert wide.meta["dtype"] == "uint32"
    assert max(values(wide, "train")) > 1 << 16


def test_files_that_change_are_another_source(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    data = TextData(path=str(file))
    before = source_of(data).identity
    assert source_of(data).identity == before
    file.write_text("two\n")
    os.utime(file, ns=(1, 1))
    assert source_of(data).identity != before
    assert source_of(TextData(path=str(file), bad="skip")).identity != source_of(data).identity


# --- damage ----------------------------------------------------------------------------------------------


def truncate(folder: Path) -> None:
    with (folder / "train.bin").open("r+b") as file:
        file.truncate(100)


def flip(folder: Path) -> None:
    with (folder / "train.bin").open("r+b") as file:
        file.seek(50)
        file.write(b"\xff")


def scrawl(folder: Path) -> None:
    (folder / "meta.json").write_text("{")


def spoil(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("d", "e", 1))


def lose(folder: Path) -> None:
    (folder / "validation.bin").unlink()


@pytest.mark.parametrize("damage", [truncate, flip, scrawl, spoil, lose])
def test_damage_is_noticed_and_mended(damage: Callable[[Path], None], tmp_path: Path) -> None:
    tokens = open_tokens(source(), HOW, tmp_path)
    whole = {name: values(tokens, name) for name in ("train", "validation")}
    damage(tokens.folder)
    times: list[int] = []
    again = open_tokens(source(read=lambda: times.append(1)), HOW, tmp_path)
    assert times
    assert {name: values(again, name) for name in whole} == whole
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


def test_a_copied_cache_is_not_made_anew(tmp_path: Path) -> None:
    """Its files' times differ, its content does not."""
    folder = open_tokens(source(), HOW, tmp_path).folder
    for path in folder.rglob("*.*"):
        os.utime(path, ns=(1, 1))
    open_tokens(source(read=lambda: pytest.fail("made anew")), HOW, tmp_path)


# --- many processes --------------------------------------------------------------------------------------


def test_of_many_that_start_together_one_makes_it(tmp_path: Path) -> None:
    """Ranks and jobs alike: they have nothing in common but the folder."""
    makers = tmp_path / "makers"

    def read() -> None:
        with makers.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)  # the others come meanwhile

    def work(number: int) -> None:
        tokens = open_tokens(source(read=read), HOW, tmp_path / "cache")
        (tmp_path / f"digest{number}").write_text(tokens.digest)

    children = [fork.Process(target=work, args=(number,)) for number in range(5)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert len(set(makers.read_text().split())) == 1
    assert len({(tmp_path / f"digest{number}").read_text() for number in range(5)}) == 1


def test_a_killed_maker_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    """Killed in the middle, with the lock in its hands: the next one gets the lock and makes it whole."""
    reached = tmp_path / "reached"

    def train() -> Iterator[Iterator[str]]:
        for number, text in enumerate(TEXTS * 20):
            if number == 400 and reached.exists():  # the tokenizer's pass comes first
                reached.with_name("now").touch()
                time.sleep(60)
            yield iter((text * 10,))
        reached.touch()

    def work() -> None:
        open_tokens(TextSource("texts", {"texts": TEXTS}, train, None), HOW, tmp_path / "cache")

    child = fork.Process(target=work)
    child.start()
    limit = time.monotonic() + 60
    while not (tmp_path / "now").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert child.pid and child.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    left = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert left == [".lock", ".partial"]
    tokens = open_tokens(source(), HOW, tmp_path / "cache")
    assert tokens.meta["parts"]["train"]["documents"] == 36
    assert json.loads((tokens.folder / "meta.json").read_text()) == tokens.meta
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", ".lock"]
