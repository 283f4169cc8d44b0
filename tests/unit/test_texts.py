"""Text on disk: which files are taken for what, and every fault with its file and line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from muster.core.errors import DataError, RecipeError
from muster.inputs.model import model_config
from muster.inputs.read import read_inputs
from muster.planner.setting import sequence_of
from muster.store.lines import LONGEST_LINE, Skipped
from muster.workloads.causal_lm import texts
from muster.workloads.causal_lm.texts import check_texts, documents, find_texts, library_files, pieces_of


def write(folder: Path, *names: str, text: str = "a line\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def names(folder: Path, files: tuple[Path, ...]) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files]


def test_what_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data"):
        find_texts(tmp_path / "nowhere")
    write(tmp_path, "image.png")
    with pytest.raises(DataError, match="has no text files"):
        find_texts(tmp_path)


def read(file: Path, field: str = "text", skipped: Skipped | None = None) -> list[str]:
    """The documents of a file, each in one."""
    return ["".join(document) for document in documents(file, field, skipped.add if skipped else None)]


def test_a_text_file_is_a_document_and_comes_back_whole(tmp_path: Path) -> None:
    text = "".join(f"line {i} ümlaut\n\n  more\n" for i in range(20_000)) + "no end"
    write(tmp_path, "a.txt", text="")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(text.encode())
    assert read(tmp_path / "a.txt") == read(tmp_path / "b.txt.gz") == [text]
    pieces = [piece for document in documents(tmp_path / "a.txt", "") for piece in document]
    assert len(pieces) > 3
    assert all(re.search(r"\S\n$", piece) for piece in pieces[:-1])
    assert all(re.match(r"\S", piece) for piece in pieces)


def test_a_line_longer_than_a_piece_is_cut() -> None:
    text = "x" * (5 * texts.PIECE) + "\n"
    pieces = list(pieces_of(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 2 * texts.PIECE


def test_every_json_line_is_a_document(tmp_path: Path) -> None:
    rows = [{"body": "one\n"}, {"body": ""}, {"body": "two", "more": 1}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert [text for text in read(tmp_path / "a.jsonl", "body") if text] == ["one\n", "two"]


def test_a_table_is_read_by_its_column_and_never_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,body\n1,"one\nline"\n2,two\n')
    assert read(tmp_path / "a.csv", "body") == ["one\nline", "two"]
    (tmp_path / "a.jsonl").write_text('{"page": {"body": "one"}}\n')
    assert read(tmp_path / "a.jsonl", "page.body") == ["one"]


def test_a_huge_line_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ok\n" + b"x" * (LONGEST_LINE + 5) + b"\n")
    with pytest.raises(DataError, match=r"a line of 16\.8 MB") as caught:
        read_inputs("causal-lm", "local:2", [f"data.path={tmp_path / 'a.txt'}"])
    assert caught.value.where == f"{tmp_path / 'a.txt'}:2"


def test_at_most_so_many_tokens_are_trained_on(tmp_path: Path) -> None:
    """One a byte and two for the ends of a document; of much data, the first files are read."""
    write(tmp_path, "train/1.txt", "train/2.txt", "valid/1.txt", text="aü\n")
    assert check_texts(tmp_path, "text", "error", 1 << 20) == 2 * (4 + 2)
    assert check_texts(tmp_path, "text", "error", 4) == 2 * (4 + 2)
    assert check_texts(tmp_path, "text", "error", 3) == 4 + 2


def test_bad_lines_are_skipped_and_counted_where_the_recipe_says_so(tmp_path: Path) -> None:
    huge = b"x" * (LONGEST_LINE + 1)
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\n" + huge + b"\ntwo\n")
    skipped = Skipped()
    assert read(tmp_path / "a.txt", skipped=skipped) == ["one\ntwo\n"]
    assert (skipped.count, skipped.first) == (
        2,
        f"{tmp_path}/a.txt:2: is not UTF-8: byte 0xff at 4 of the file",
    )
    (tmp_path / "c.txt").write_bytes(huge[1:] + b"\ntwo\n")  # too long by its end alone: the next line stays
    assert read(tmp_path / "c.txt", skipped=Skipped()) == ["two\n"]
    read_inputs(
        "causal-lm", "local:2", [f"data.path={tmp_path / 'a.txt'}", "data.bad=skip", "data.sequence=4"]
    )
    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"has no text; 1 skipped, the first: .*b\.txt:1"):
        check_texts(tmp_path / "b.txt", "text", "skip", 1 << 20)


def test_a_sequence_longer_than_the_positions() -> None:
    with pytest.raises(RecipeError, match="is 300, and the model has 256 positions") as caught:
        read_inputs("gpt2-micro", "local:1", ["data.sequence=300"])
    assert caught.value.where == "data.sequence"
    read_inputs("gpt2-micro", "local:1", ["data.sequence=256"])


SMALL = "hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 500"
OTHERS = {
    "opt": f"{{model_type: opt, max_position_embeddings: 64, {SMALL}}}",
    "llama": f"{{model_type: llama, max_position_embeddings: 64, {SMALL}}}",
    "gpt_neox": f"{{model_type: gpt_neox, max_position_embeddings: 64, {SMALL}}}",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_positions_of_another_model_do_not_count(kind: str) -> None:
    """The recipe's GPT-2 has 256; whoever makes another model of it has that model's."""
    override = f"model.config={OTHERS[kind]}"
    with pytest.raises(RecipeError, match="is 200, and the model has 64 positions"):
        read_inputs("causal-lm", "local:1", [override, "data.sequence=200"])
    made = read_inputs("causal-lm", "local:1", [override]).recipe
    assert sequence_of(made, model_config(made)) == 64


def test_the_standard_library_in_a_fixed_order() -> None:
    root, files = library_files()
    relative = [file.relative_to(root).as_posix() for file in files]
    assert relative == sorted(relative)
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py"} <= set(relative)
    assert not [
        name for name in relative if "site-packages" in name or name.startswith(("test/", "idlelib/"))
    ]
    assert sum(file.stat().st_size for file in files) > 4_000_000
