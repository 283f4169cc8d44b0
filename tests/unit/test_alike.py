"""What tells hosts' data apart: the smallest difference is another digest, another place of them is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.core.errors import DataError

pytest.importorskip("torch")

from muster.worker import together
from muster.workloads.seq2seq.train import TextPair, digest_of_pairs


class Tokens:
    """A tokenizer's vocabulary."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_vocab(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}


PAIRS = [TextPair(f"how many are {i}?", f"SELECT {i}") for i in range(5)]


def test_questions() -> None:
    same = digest_of_pairs(PAIRS[:4], PAIRS[4:], Tokens("a", "b"))
    assert same.startswith("4 to train on (") and "1 held out (" in same and "2 tokens (" in same
    elsewhere = [replace(pair, database="/there/x.db") for pair in PAIRS]
    assert digest_of_pairs(elsewhere[:4], elsewhere[4:], Tokens("a", "b")) == same
    others = [
        digest_of_pairs([*PAIRS[1:4], PAIRS[0]], PAIRS[4:], Tokens("a", "b")),  # in another order
        digest_of_pairs([*PAIRS[:3], TextPair("how many are 3?S", "ELECT 3")], PAIRS[4:], Tokens("a", "b")),
        digest_of_pairs(PAIRS[:4], [TextPair("how many are 4?", "SELECT 5")], Tokens("a", "b")),
        digest_of_pairs(PAIRS[:4], PAIRS[4:], Tokens("b", "a")),
    ]
    assert len({same, *others}) == 5


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
