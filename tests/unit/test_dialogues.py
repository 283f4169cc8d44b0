"""Prompts and answers: rows of files, templates, what is learned, packing, pairs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import DataError, RecipeError
from muster.core.recipe import recipe_from
from muster.dialogues.rows import Turn, Wanted, dialogue_of, fields_read
from muster.dialogues.spec import DialogueRecipe
from tests.support import needs_torch

PAIRS = Wanted(pairs=True)
SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def test_what_stands_beside_two_whole_texts_is_not_read() -> None:
    row = {"chosen": "A\n\nAssistant: B", "rejected": "A\n\nAssistant: C", "system": "S"}
    assert dialogue_of(row, PAIRS, "x:1").turns == (Turn("text", "A\n\nAssistant:"),)
    assert "system" not in fields_read(row, PAIRS)
    assert "system" in fields_read({"chosen": SAID, "rejected": SAID, "system": "S"}, PAIRS)


def test_an_answer_of_weight_0_is_read_and_not_learned(tokenizer: Any) -> None:
    """As OpenAI's files say it, of answers that only lead to the next one."""

    def said(*weights: int | None) -> list[dict[str, Any]]:
        asked = [{"role": "user", "content": f"Q{n}"} for n in range(len(weights))]
        answers = [{"role": "assistant", "content": "A", "weight": each} for each in weights]
        return [message for pair in zip(asked, answers, strict=True) for message in pair]

    templates = _templates(tokenizer, chat=True)
    plain, weighted = (
        templates.parts(dialogue_of({"messages": said(first, None)}, Wanted(), "x:1")) for first in (1, 0)
    )
    assert [part.tokens for part in plain] == [part.tokens for part in weighted]
    assert [part.learned for part in plain] == [False, True, False, True]
    assert [part.learned for part in weighted] == [False, False, False, True]
    for wrong in (said(1, 0), said(0.5, 1)):
        with pytest.raises(DataError, match="weight"):
            dialogue_of({"messages": wrong}, Wanted(), "x:1")


def _file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _recipe(workload: str = "sft", **data: Any) -> DialogueRecipe:
    found = recipe_from({"workload": workload, "data": data})
    assert isinstance(found, DialogueRecipe)
    return found


def test_the_rest_of_a_file_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    file = _file(tmp_path / "a.jsonl", [{"prompt": str(n), "answer": "x"} for n in range(9)])
    assert [each.question for each in Wanted().form.read([file], limit=2)] == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"reward": {"execution": False}}, "nothing says what an answer is worth"),
        ({"reward": {"function": "here.py"}}, "is not FILE.py:NAME"),
        ({"reward": {"function": "nowhere.py:f"}}, "no such file"),
        ({"reward": {"execution": True}, "data": {"path": "PAIRS"}}, "no answer can be judged by running it"),
        ({"reward": {"execution": True}, "generation": {"prompt": 300, "answer": 300}}, "512 positions"),
        ({"reward": {"execution": True}, "grpo": {"beta": 0.1}}, "nothing that it could be held to"),
    ],
)
def test_what_cannot_be_rewarded(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    file = _file(tmp_path / "a.jsonl", [{"prompt": f"p{n}", "answer": "x"} for n in range(9)])
    if "data" in changes:
        changes["data"] = {"path": str(file)}
    made = recipe_from({"workload": "grpo", **changes})
    with pytest.raises((DataError, RecipeError), match=what):
        made.check_data(
            file if "data" in changes else None, {"model_type": "llama", "max_position_embeddings": 512}
        )


# --- tokens -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    needs_torch()
    from muster.worker.data.tokenizer import train_tokenizer

    return train_tokenizer(["Human: Hi there\n\nAssistant: Hello you, what now?"] * 20, 320)


def _templates(tokenizer: Any, *, chat: bool) -> Any:
    from muster.dialogues.tokens import Templates, with_template

    tokenizer.chat_template = None  # of an earlier test
    with_template(tokenizer, chat=chat, template="auto")
    return Templates(tokenizer)


def test_a_plain_prompt_is_taken_as_it_is(tokenizer: Any) -> None:
    templates = _templates(tokenizer, chat=False)
    sample = dialogue_of({"prompt": "Hi there", "answer": " Hello"}, Wanted(), "x")
    prompt, answer = templates.parts(sample)
    assert tokenizer.decode(prompt.tokens) == "Hi there" and not prompt.learned
    assert tokenizer.decode(answer.tokens) == " Hello</s>" and answer.learned
    assert prompt.tokens == templates.prompt(sample.turns)
    assert answer.tokens == templates.answer(sample.turns, " Hello")


def test_all_answers_of_a_chat_are_learned_and_each_ends(tokenizer: Any) -> None:
    templates = _templates(tokenizer, chat=True)
    said = [*SAID, {"role": "user", "content": "now?"}, {"role": "assistant", "content": "So"}]
    sample = dialogue_of({"messages": said}, Wanted(), "x")
    parts = templates.parts(sample)
    texts = [(tokenizer.decode(part.tokens), part.learned) for part in parts]
    assert texts == [
        ("\n\nHuman: Hi\n\nAssistant: ", False),
        ("Hello</s>", True),
        ("\n\nHuman: now?\n\nAssistant: ", False),
        ("So</s>", True),
    ]
    asked = [token for part in parts[:-1] for token in part.tokens]
    assert templates.prompt(sample.turns) == asked  # what is asked later is what was seen
    assert templates.answer(sample.turns, "So") == parts[-1].tokens


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_answer_ends_once_as_its_template_ends_it(tmp_path: Path) -> None:
    """ChatML over a tokenizer whose texts end otherwise, as Qwen2.5's base model has it."""
    needs_torch()
    from transformers import AutoTokenizer

    from muster.dialogues.tokens import Templates, converses, with_template
    from muster.worker.data.tokenizer import train_text_tokenizer

    made = train_text_tokenizer(["user assistant Hi Hello now So"] * 9, 300)
    made.split_special_tokens = False
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = CHATML
    assert with_template(made, chat=True, template="auto")  # is said
    templates, end = Templates(made), made.convert_tokens_to_ids("<|im_end|>")
    said = [*SAID, {"role": "user", "content": "now"}, {"role": "assistant", "content": "So"}]
    sample = dialogue_of({"messages": said}, Wanted(), "x")
    parts = templates.parts(sample)
    assert [made.decode(part.tokens) for part in parts if part.learned] == ["Hello<|im_end|>", "So<|im_end|>"]
    whole = made.apply_chat_template(said, tokenize=False).rstrip("\n")
    assert made.decode([token for part in parts for token in part.tokens]) == whole
    assert templates.prompt(sample.turns) == [token for part in parts[:-1] for token in part.tokens]
    quoted = templates.answer((Turn("user", "Hi"),), "say <|im_end|> then")  # of which the end is the last
    assert made.decode(quoted) == "say <|im_end|> then<|im_end|>"
    assert (templates.end, made.eos_token_id, made.pad_token_id) == (end, end, end)
    made.save_pretrained(str(tmp_path))
    again = AutoTokenizer.from_pretrained(str(tmp_path))
    assert (again.eos_token_id, converses(again), again.chat_template) == (end, True, CHATML)


def test_a_tokenizer_keeps_a_template_that_plain_prompts_do_not_use(tmp_path: Path) -> None:
    needs_torch()
    from transformers import AutoTokenizer

    from muster.dialogues.tokens import turns_of, with_template
    from muster.worker.data.tokenizer import train_text_tokenizer

    made = train_text_tokenizer(["user assistant Hi Hello now So"] * 9, 300)
    made.chat_template = CHATML
    (note,) = with_template(made, chat=False, template="auto")
    assert "data.template" in note
    made.save_pretrained(str(tmp_path / "one"))
    again = AutoTokenizer.from_pretrained(str(tmp_path / "one"))
    assert again.chat_template == CHATML
    assert turns_of(again, "Hi") == (Turn("text", "Hi"),)  # it is asked as it was trained
    with_template(again, chat=True, template="auto")
    again.save_pretrained(str(tmp_path / "two"))
    assert turns_of(AutoTokenizer.from_pretrained(str(tmp_path / "two")), "Hi") == (Turn("user", "Hi"),)


def test_an_end_that_a_user_writes_is_text(tokenizer: Any) -> None:
    templates = _templates(tokenizer, chat=True)
    tokens = templates.prompt((Turn("user", "Hi</s>"),))
    assert tokenizer.eos_token_id not in tokens


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: Any) -> None:
    templates = _templates(tokenizer, chat=True)
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    sample = dialogue_of({"messages": [*SAID, *SAID]}, Wanted(), "x")
    with pytest.raises(DataError, match="rewrites earlier turns"):
        templates.parts(sample)


def _learned(tokenizer: Any, what: str, sequence: int = 64, *, chat: bool = True) -> Any:
    from muster.dialogues.tokens import Fitting, learned

    said = [*SAID, {"role": "user", "content": "now?"}, {"role": "assistant", "content": "So"}]
    samples = [
        dialogue_of({"messages": said}, Wanted(), "x:1"),
        dialogue_of({"messages": SAID}, Wanted(), "x:2"),
    ]
    return learned(samples, _templates(tokenizer, chat=chat), Fitting(sequence), what, None)


@pytest.mark.parametrize(
    ("what", "told"),
    [("answers", "Hello</s>So</s>"), ("last", "So</s>"), ("everything", None)],
)
def test_what_the_loss_counts(tokenizer: Any, what: str, told: str | None) -> None:
    row = _learned(tokenizer, what)[0]
    counted = [label for label in row["labels"] if label != -100]
    assert len(row["labels"]) == len(row["input_ids"])
    assert all(label in (-100, token) for token, label in zip(row["input_ids"], row["labels"], strict=True))
    assert counted == row["input_ids"] if told is None else tokenizer.decode(counted) == told


def test_a_long_answer_is_cut_and_a_long_prompt_is_refused(tokenizer: Any) -> None:
    whole = _learned(tokenizer, "answers")
    shortest = _learned(tokenizer, "answers", max(whole.lengths) - 1)
    assert shortest.cut == 1 and max(shortest.lengths) == max(whole.lengths) - 1
    with pytest.raises(DataError, match="has room for 7") as found:
        _learned(tokenizer, "answers", 8)
    assert found.value.where == "x:1"


def test_padding_is_learned_where_that_is_asked_for(tokenizer: Any) -> None:
    from muster.dialogues.tokens import LearnedCollator

    rows = _learned(tokenizer, "everything")
    pad = tokenizer.pad_token_id
    made = LearnedCollator(pad, fixed=64, pads=True)([rows[1], {**rows[1], "ignored": True}])
    assert (made["labels"][0, 1:] == made["input_ids"][0, 1:]).all() and made["labels"][0, 0] == -100
    assert (made["labels"][1] == -100).all()  # only fills up a held-out batch
    plain = LearnedCollator(pad, multiple=8)([rows[0], rows[1]])
    assert plain["input_ids"].shape[1] % 8 == 0
    assert (plain["labels"][1][rows.lengths[1] :] == -100).all()


def test_packing_keeps_every_sample_once(tokenizer: Any) -> None:
    from muster.dialogues.tokens import Rows, packed

    sizes = [5, 9, 3, 7, 7, 2, 9, 1]
    rows = Rows([{"input_ids": [n] * n, "labels": [n] * n} for n in sizes], sizes)
    made = packed(rows, 10)
    assert sorted(size for row in made.rows for size in row["sizes"]) == sorted(sizes)
    assert all(
        len(row["input_ids"]) == length <= 10 for row, length in zip(made.rows, made.lengths, strict=True)
    )
    assert len(made) == 5  # first-fit decreasing: 9+1, 9, 7+3, 7+2, 5
    first = made[0]
    assert first["labels"][0] == -100 and first["labels"][9] == -100  # nobody predicts a sample's first token


def test_pairs_as_tokens(tokenizer: Any) -> None:
    from muster.dialogues.tokens import Fitting, PreferenceCollator, count_pairs, pairs

    templates = _templates(tokenizer, chat=False)
    samples = [
        dialogue_of({"prompt": "Hi", "chosen": "Hello you", "rejected": "now"}, PAIRS, "x:1"),
        dialogue_of({"prompt": "Hi there", "chosen": "what", "rejected": "what now"}, PAIRS, "x:2"),
    ]
    rows = pairs(samples, templates, Fitting(64), None)
    made = PreferenceCollator(tokenizer.pad_token_id)([rows[0], {**rows[1], "ignored": True}])
    assert made["input_ids"].shape[0] == 4
    texts = [
        tokenizer.decode(ids[mask == 1])
        for ids, mask in zip(made["input_ids"], made["attention_mask"], strict=True)
    ]
    assert texts == ["HiHello you</s>", "Hi therewhat</s>", "Hinow</s>", "Hi therewhat now</s>"]
    answered = made["completion_mask"].sum(1).tolist()
    assert answered == [len(rows[0]["chosen_ids"]), 0, len(rows[0]["rejected_ids"]), 0]
    counts = count_pairs(made)
    assert (counts.samples, int(counts.tokens)) == (2, int(made["attention_mask"].sum()))
    same = dialogue_of({"prompt": "Hi", "chosen": "Hello you x", "rejected": "Hello you y"}, PAIRS, "x:3")
    room = len(templates.prompt(same.turns)) + 1
    with pytest.raises(DataError, match="the same in their first") as found:
        pairs([same], templates, Fitting(room), None)
    assert found.value.where == "x:3"
    errors: list[DataError] = []
    assert len(pairs([same, samples[0]], templates, Fitting(64), errors)) == 2 and not errors
    assert len(pairs([same], templates, Fitting(room), errors)) == 0 and len(errors) == 1


REFUSING = "{{ raise_exception('no system') if messages[0]['role'] == 'system' }}" + CHATML


def test_what_a_template_refuses_is_left_out_with_its_place(tokenizer: Any) -> None:
    """As Gemma's refuses what a system says: samples of answers, pairs, and prompts that are answered."""
    from muster.dialogues.rollouts import Prompts
    from muster.dialogues.tokens import Fitting, learned, pairs

    templates = _templates(tokenizer, chat=True)
    tokenizer.chat_template = REFUSING
    said = {"chosen": SAID, "rejected": [SAID[0], {"role": "assistant", "content": "No"}]}
    samples = [
        dialogue_of({**said, "system": "S"}, PAIRS, "x:1"),
        dialogue_of(said, PAIRS, "x:2"),
        dialogue_of({**said, "system": "T"}, PAIRS, "x:3"),
    ]
    longest = len(templates.prompt(samples[1].turns))
    for make in (
        lambda errors: learned(samples, templates, Fitting(64), "answers", errors),
        lambda errors: pairs(samples, templates, Fitting(64), errors),
        lambda errors: Prompts(samples, SimpleNamespace(templates=templates, errors=errors), longest),  # type: ignore[arg-type]
    ):
        left: list[DataError] = []
        assert len(make(left)) == 1
        assert [(each.where, "no system" in each.what) for each in left] == [("x:1", True), ("x:3", True)]
        with pytest.raises(DataError, match="no system") as caught:
            make(None)
        assert caught.value.where == "x:1"


def test_held_out_pairs_are_counted_by_their_margins() -> None:
    """A pair is right where its chosen answer has more; rows that only fill a batch count for nothing."""
    needs_torch()
    import torch

    from muster.dialogues.pairs import PairTrainer

    counting: Any = SimpleNamespace(_figures=[])
    inputs = {"completion_mask": torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]] * 2)}
    chosen, rejected = torch.tensor([2.0, 1.0, 0.0, 9.0]), torch.tensor([1.0, 3.0, -1.0, 0.0])
    PairTrainer.seen(counting, inputs, chosen, rejected)
    loss = sum(math.log(1 + math.exp(-margin)) for margin in (1, -2, 1))
    assert counting._figures[0].tolist() == pytest.approx([loss, 2, 0, 3])


def test_the_margin_of_dpo_is_that_over_the_reference() -> None:
    """beta x (log pi - log pi of the reference) of the chosen answers, then of the rejected ones."""
    needs_torch()
    import torch

    from muster.workloads.dpo.train import _Trainer

    given: list[Any] = []
    trainer: Any = SimpleNamespace(
        model=SimpleNamespace(training=False), ref_model=None, beta=0.5,
        compute_ref_log_probs=lambda *_: (torch.tensor([-3.0]), torch.tensor([-1.0])),
        seen=lambda _, chosen, rejected: given.append((chosen.item(), rejected.item())),
    )  # fmt: skip
    said = SimpleNamespace(log_probs=torch.tensor([[-1.0, -1.0], [-2.0, -1.5]]))
    inputs = {"input_ids": torch.ones(2, 3), "completion_mask": torch.ones(2, 3)}
    _Trainer.compute_loss(trainer, lambda **_: said, inputs)
    assert given == [(0.5 * (-2 + 3), 0.5 * (-3.5 + 1))]


@pytest.mark.parametrize("chat", [False, True])
def test_a_reward_model_is_asked_what_it_was_trained_on(
    chat: bool, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens, with the answer's end: its number is read there."""
    import torch

    from muster.dialogues.tokens import Fitting, pairs
    from muster.workloads.reward import train

    templates = _templates(tokenizer, chat=chat)
    prompt: Any = SAID[:1] if chat else "Hi"
    sample = dialogue_of({"prompt": prompt, "chosen": "Hello you", "rejected": "now"}, PAIRS, "x:1")
    (row,) = pairs([sample], templates, Fitting(64), None).rows
    asked: list[Any] = []

    def rewards(_: Any, texts: Any, *__: Any) -> Any:
        asked.extend(texts)
        return torch.zeros(len(texts))

    monkeypatch.setattr(train, "rewards", rewards)
    answerer = object.__new__(train.Answerer)
    answerer.tokenizer, answerer.templates, answerer.model = tokenizer, templates, None
    answerer.recipe = SimpleNamespace(evaluate=SimpleNamespace(batch=8))
    assert answerer.answer(["Hi => Hello you", "Hi => now"])[0] == ["0.0000", "0.0000"]
    assert asked == [[*row["prompt_ids"], *row[name]] for name in ("chosen_ids", "rejected_ids")]


def test_nothing_to_train_on_is_said() -> None:
    needs_torch()
    from muster.worker.trainer import wired

    nothing: Any = None
    with pytest.raises(DataError, match="no sample is left"):
        wired(
            nothing,
            nothing,
            nothing,
            nothing,
            train=[],
            held_out=[],
            lengths=[],
            collator=None,
            processing=None,
        )


@pytest.mark.parametrize(
    ("workload", "wanted"), [("sft", False), ("reward", True), ("grpo", True), ("ppo", True)]
)
def test_trl_is_looked_for_before_the_start(workload: str, wanted: bool) -> None:
    from muster.agent.host import PACKAGES
    from muster.runs.requirements import needed

    assert ("trl" in needed(recipe_from({"workload": workload}))) is wanted
    assert "trl" in PACKAGES  # whose versions hosts tell


def test_ranks_compare_rejected_answers_too() -> None:
    needs_torch()
    from muster.dialogues.load import _digest
    from muster.store.records import LoadedSamples

    row = {"prompt": "A", "chosen": "B"}
    pairs = [dialogue_of({**row, "rejected": text}, PAIRS, "x:1") for text in ("C", "D")]
    assert _digest(LoadedSamples(pairs[:1], [])) != _digest(LoadedSamples(pairs[1:], []))


def test_a_limit_holds_for_generated_samples(tmp_path: Path) -> None:
    needs_torch()
    from muster.dialogues.load import read

    recipe = _recipe(generated={"train": 8, "validation": 2}, limit=3)
    found = read(recipe, tmp_path, may_write=True)
    assert (len(found.train), len(found.held_out)) == (3, 2) and recipe.survey(None).samples == 3


def test_a_mean_length_is_of_what_is_left_of_samples(tmp_path: Path) -> None:
    """Of long answers the end is cut."""
    rows = [{"prompt": f"{n}", "answer": "b " * 400} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = _recipe(generated=None, path=str(tmp_path / "rows.jsonl"), sequence=16)
    assert set(recipe.survey({}).lengths) == {(16,)}


@pytest.mark.parametrize(("workload", "key"), [("sft", "data.sequence"), ("grpo", "generation.prompt")])
def test_a_prompt_without_room_is_refused_before_the_start(workload: str, key: str, tmp_path: Path) -> None:
    """Where the ranks' tokenizer is here: in the training part or the held-out one, as text or messages."""
    pytest.importorskip("tokenizers")
    from muster.store.tokens import byte_level

    made = byte_level(["a b c"], 300, ["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    limits = {"sft": {"data": {"sequence": 41}}, "grpo": {"generation": {"prompt": 40}}}[workload]

    def recipe(path: Path, **data: Any) -> DialogueRecipe:
        extra = {"reward": {"function": "math:floor"}} if workload == "grpo" else {}
        given = {"path": str(path), **limits.get("data", {}), **data}
        found = recipe_from(
            {"workload": workload, "model": {"tokenizer": str(tmp_path)}, **extra, **limits, "data": given}
        )
        assert isinstance(found, DialogueRecipe)
        return found

    rows = [{"prompt": f"{n:02}" + "x" * 38, "answer": "y"} for n in range(20)]
    file = _file(tmp_path / "a.jsonl", rows)
    recipe(file).check_data(file, {})  # as long as may be
    rows[13] = {"prompt": "x" * 41, "answer": "y"}
    with pytest.raises(DataError, match="41 tokens") as found:
        recipe(_file(file, rows)).check_data(file, {})
    assert found.value.where == f"{file}:14" and f"a longer {key}" in (found.value.hint or "")
    recipe(file, bad="skip").check_data(file, {})
    said = [{"role": "user", "content": "x" * 41}, {"role": "assistant", "content": "y"}]
    rows[13] = {"messages": said}  # type: ignore[dict-item]
    with pytest.raises(DataError, match="at least 41 tokens"):
        recipe(_file(file, rows)).check_data(file, {})
    (tmp_path / "tokenizer.json").unlink()
    recipe(file).check_data(file, {})  # ranks will say it


def test_pairs_that_may_be_in_the_wrong_order() -> None:
    """With even odds the order is nothing, and equal rewards are no order."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("trl")
    from muster.dialogues.pairs import PairTrainer

    trainer: Any = SimpleNamespace(see=lambda *_: None, _figures=[])
    chosen, rejected = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.5])
    losses = [
        PairTrainer.preferring(trainer, *each, 0.5) for each in ((chosen, rejected), (rejected, chosen))
    ]
    assert losses[0].item() == pytest.approx(losses[1].item()) and losses[0] > 0
    PairTrainer.seen(trainer, {"completion_mask": torch.ones(4, 3)}, chosen, chosen)
    assert trainer._figures[0].tolist()[1:] == [0.0, 0.0, 2.0]


def test_a_pair_that_fills_up_a_held_out_batch_counts_for_nothing() -> None:
    """Whatever the model makes of it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    from muster.dialogues.pairs import PairTrainer

    trainer: Any = PairTrainer.__new__(PairTrainer)
    trainer._figures = []
    mask = torch.tensor([[0, 1], [0, 1], [0, 0], [1, 1], [0, 1], [0, 0]])  # three chosen, then three rejected
    chosen, rejected = torch.tensor([2.0, 1.0, math.nan]), torch.tensor([1.5, 3.0, 0.0])
    trainer.seen({"completion_mask": mask}, chosen, rejected)
    (figures,) = trainer._figures
    loss = math.log1p(math.exp(-0.5)) + math.log1p(math.exp(2.0))
    assert figures.tolist() == pytest.approx([loss, 1, 0.5 - 2.0, 2])


def test_what_is_not_read_of_a_row_is_said_once() -> None:
    """A message's own fields too; not those of a field that is not read as a whole."""
    spoken = [{"role": "user", "content": "q", "rating": 1}, {"role": "assistant", "content": "a"}]
    row = {"messages": spoken, "log": [{"role": "user", "content": "x", "at": 3}], "id": 7}
    (note,) = Wanted().form.unread("rows", [("rows:1", row)])
    assert note.rpartition(": ")[2].split(", ") == ["log", "id", "messages.rating"]
