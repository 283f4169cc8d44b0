"""What tells hosts' data apart: the smallest difference is another digest, another place of them is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError
from muster.workloads.image_classification.spec import Digits, ImageData
from tests.images import BLUE, RED, png, write_folder, write_parquet

pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("datasets")

from muster.worker import together
from muster.workloads.image_classification.images import digest_of_images, load_parts
from muster.workloads.seq2seq.train import Pair, digest_of_pairs


class Tokens:
    """A tokenizer's vocabulary."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_vocab(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}


PAIRS = [Pair(f"how many are {i}?", f"SELECT {i}") for i in range(5)]


def test_questions() -> None:
    same = digest_of_pairs(PAIRS[:4], PAIRS[4:], Tokens("a", "b"))
    assert same.startswith("4 to train on (") and "1 held out (" in same and "2 tokens (" in same
    elsewhere = [replace(pair, database="/there/x.db") for pair in PAIRS]
    assert digest_of_pairs(elsewhere[:4], elsewhere[4:], Tokens("a", "b")) == same
    others = [
        digest_of_pairs([*PAIRS[1:4], PAIRS[0]], PAIRS[4:], Tokens("a", "b")),  # in another order
        digest_of_pairs([*PAIRS[:3], Pair("how many are 3?S", "ELECT 3")], PAIRS[4:], Tokens("a", "b")),
        digest_of_pairs(PAIRS[:4], [Pair("how many are 4?", "SELECT 5")], Tokens("a", "b")),
        digest_of_pairs(PAIRS[:4], PAIRS[4:], Tokens("b", "a")),
    ]
    assert len({same, *others}) == 5


def digest(path: Path | None = None, **fields: Any) -> str:
    data = ImageData(path=str(path) if path else None, **fields)
    return digest_of_images(load_parts(data, seed=1, number=None), data.path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the datasets library keeps of a test goes with the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_folders_of_images(tmp_path: Path) -> None:
    files = {f"train/{name}/{i}.png": png(RED) for name in ("a", "b") for i in range(3)}
    files["test/a/1.png"] = png(RED)
    same = digest(write_folder(tmp_path / "here", files))
    assert same.startswith("6 to train on (") and "1 held out (" in same and "2 classes (" in same
    assert digest(write_folder(tmp_path / "there", files)) == same
    larger = {**files, "train/b/1.png": png(RED, 40)}
    renamed = {("train/b/7.png" if name == "train/b/1.png" else name): each for name, each in files.items()}
    others = {name.replace("/b/", "/c/"): content for name, content in files.items()}
    held_out = {**files, "test/a/1.png": png(RED, 40)}
    found = [
        digest(write_folder(tmp_path / str(index), each))
        for index, each in enumerate((larger, renamed, others, held_out))
    ]
    assert len({same, *found}) == 5


def test_tables_of_images(tmp_path: Path) -> None:
    rows: list[tuple[bytes | None, Any]] = [(png(RED), 0), (png(BLUE), 1), (None, 0), (png(BLUE, 9), 1)]

    def table(name: str, rows: list[tuple[bytes | None, Any]]) -> str:
        write_parquet(tmp_path / name / "train.parquet", rows)
        return digest(write_parquet(tmp_path / name / "test.parquet", rows[:2]).parent)

    same = table("here", rows)
    assert table("there", rows) == same
    larger = table("larger", [(png(RED, 20), 0), *rows[1:]])
    assert len({same, larger, table("labels", [(png(RED), 1), *rows[1:]])}) == 3
    assert digest(digits=Digits()) == digest(digits=Digits()) != digest(digits=Digits(seed=7))


def test_hosts_are_named() -> None:
    together.compare("the text is", [("node1", "x"), ("node2", "x")])
    with pytest.raises(DataError) as caught:
        together.compare("the text is", [("node1", "x"), ("node2", "x"), ("node3", "y"), ("node3", "y")])
    assert str(caught.value) == "data: the text is not the same on all hosts: node[1-2] has x; node3 has y"
    assert "muster prepare" in (caught.value.hint or "")


def test_one_rank_is_not_asked() -> None:
    class Alone:
        world_size = 1

    together.check_alike(Alone(), "the text is", lambda: pytest.fail("asked"))  # type: ignore[arg-type]
