"""The trained tokenizer: any text comes back, values are the same tokens in questions and SQL, it reloads."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from muster.core.errors import RecipeError
from muster.core.recipe import Model
from muster.worker.data.tokenizer import load_tokenizer, train_tokenizer, without_end

TEXTS = [
    "translate to SQL: Which customers from Karburg have points above 402?",
    "SELECT name FROM customer WHERE city = 'Karburg' AND points > 402",
] * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 320)


def back(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    decoded = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(decoded, str)
    return decoded


def test_the_tokenizer_has_the_shape_of_t5s(tokenizer: PreTrainedTokenizerFast) -> None:
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert len(tokenizer) == 320
    assert tokenizer.model_max_length == 512
    assert tokenizer("")["input_ids"] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "  a  b ",
        " x",
        "don't ' s a , b . c ?",
        "</s> <pad>hi<unk>",
        "é漢字 🙂\n\t\r\n 1234",
        "\x00\x1f\u2028",
        *TEXTS[:2],
    ],
)
def test_awkward_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert back(tokenizer, text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    assert back(_shared(), text) == text


def test_values_are_the_same_tokens_everywhere(tokenizer: PreTrainedTokenizerFast) -> None:
    question, sql = (tokenizer.tokenize(text) for text in TEXTS[:2])
    assert [token for token in question if token.isdigit()] == ["4", "0", "2"]
    assert [token for token in sql if token.isdigit()] == ["4", "0", "2"]
    value = tokenizer.tokenize("Karburg")
    for tokens in (question, sql):
        assert any(tokens[start : start + len(value)] == value for start in range(len(tokens)))


def test_it_is_deterministic_and_reloads(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    assert train_tokenizer(iter(TEXTS), 320).get_vocab() == tokenizer.get_vocab()
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS[:2], "</s> typed 7"):
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert back(again, text) == text
    assert again.model_max_length == 512


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 259"):
        train_tokenizer(TEXTS, 100)


_CACHE: list[PreTrainedTokenizerFast] = []


def _shared() -> PreTrainedTokenizerFast:
    """One tokenizer for every example: hypothesis and function-scoped fixtures don't mix."""
    if not _CACHE:
        _CACHE.append(train_tokenizer(TEXTS, 320))
    return _CACHE[0]


@pytest.mark.parametrize("before", [[], ["<unk>"]])
def test_a_decoder_goes_on_with_a_text(before: list[str], tmp_path: Path) -> None:
    """No end of text is put behind it, also by the saved tokenizer; what is put before it stays."""
    from tokenizers import processors

    made = train_tokenizer(TEXTS, 320)
    plain = made("points", add_special_tokens=False)["input_ids"]
    if before:
        numbers = [("<unk>", 2), ("</s>", 1)]
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", "</s>"], special_tokens=numbers
        )
    assert made("points")["input_ids"] == [*[2] * len(before), *plain, 1]
    for _ in range(2):
        without_end(made)
        assert made("points")["input_ids"] == [*[2] * len(before), *plain]
    made.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("points")["input_ids"] == [*[2] * len(before), *plain]


@pytest.mark.parametrize(
    ("key", "where"), [("name", "model.name"), ("tokenizer", "model.tokenizer"), (None, None)]
)
def test_a_tokenizer_that_cannot_be_loaded_is_blamed_on_the_key_that_names_it(
    key: str | None, where: str | None, tmp_path: Path
) -> None:
    model = Model(**{key: str(tmp_path)} if key else {})
    if where is None:
        assert load_tokenizer(model) is None  # one is trained on the data
        return
    with pytest.raises(RecipeError) as caught:
        load_tokenizer(model)
    assert caught.value.where == where
