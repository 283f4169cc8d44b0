"""What answers are worth, and wrong SQL beside the right one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import DataError, RecipeError
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.dialogues.rows import Dialogue, Turn, Wanted
from muster.store.records import Splits
from muster.workloads.seq2seq.spec import PairData
from tests.support import needs_torch


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "towns.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE town (name TEXT, size INTEGER)")
        made.executemany("INSERT INTO town VALUES (?, ?)", [("A", 1), ("B", 2), ("C", 3)])
    return path


def asked(database: Path | None, answer: str | None = "SELECT name FROM town WHERE size > 1") -> Dialogue:
    return Dialogue((Turn("user", "Which?"),), answer, None, "x:1", str(database) if database else None)


@pytest.mark.parametrize(
    ("expected", "said", "right"),
    [
        ("SELECT name FROM town WHERE size > 1", "SELECT name FROM town WHERE size >= 2", True),
        ("SELECT name FROM town WHERE size > 1", "SELECT name FROM town", False),
        ("SELECT name FROM town WHERE size > 1", "no SQL", False),
        # Of nothing, and of zeros, much wrong SQL gives the same.
        ("SELECT name FROM town WHERE size > 9", "SELECT name FROM town WHERE size > 8", False),
        ("SELECT name FROM town WHERE size > 9", "SELECT  name FROM town WHERE size > 9", True),
        ("SELECT count(*) FROM town WHERE size > 9", "SELECT count(*) FROM town WHERE name = 'Z'", False),
        ("SELECT count(*) FROM town WHERE size > 1", "SELECT count(size) FROM town WHERE size > 1", True),
    ],
)
def test_sql_that_is_run(database: Path, expected: str, said: str, right: bool) -> None:
    from muster.dialogues.scoring import _executes

    assert _executes(asked(database, expected), said) is right


def test_expected_sql_that_cannot_be_run_is_the_datas_fault(database: Path) -> None:
    from muster.dialogues.scoring import _executes

    with pytest.raises(DataError, match="cannot be run") as found:
        _executes(asked(database, "SELECT x FROM nowhere"), "SELECT 1")
    assert found.value.where == "x:1"


def scorer(tmp_path: Path, body: str, **reward: Any) -> Any:
    from muster.dialogues.scoring import Scorer
    from muster.worker.data.tokenizer import train_tokenizer

    file = tmp_path / "rewards.py"
    file.write_text(f"def reward(prompts, answers, expected):\n    {body}\n")
    given = {"function": f"{file}:reward", **reward}
    recipe: Any = recipe_from({"workload": "grpo", "reward": given})
    tokenizer = train_tokenizer(["SELECT name FROM town"] * 9, 300)
    context: Any = SimpleNamespace(device="cpu", recipe=recipe, precision="fp32", local_rank=0)
    return Scorer(context, recipe, tokenizer)


def test_rewards_are_added_up(tmp_path: Path, database: Path) -> None:
    body = "return [len(each) + (want is not None) for each, want in zip(answers, expected)]"
    found = scorer(tmp_path, body, execution=True)
    right = "SELECT name FROM town WHERE size > 1"
    answers = [found.tokenizer(text)["input_ids"] for text in (right, "SELECT name FROM town")]
    assert found([asked(database)] * 2, answers) == [len(right) + 1 + 1, len("SELECT name FROM town") + 1]


def test_a_reward_model_reads_each_answer_behind_its_own_prompt(tmp_path: Path) -> None:
    """One that gives the first token its place's weight, and so on."""
    import torch

    class Places(torch.nn.Linear):
        def forward(self, tokens: Any, attention_mask: Any) -> Any:
            return SimpleNamespace(
                logits=(tokens * attention_mask * torch.arange(tokens.shape[1])).sum(1, True)
            )

    found = scorer(tmp_path, "return [0.0] * len(answers)")
    found.model = Places(1, 1)
    samples = [
        Dialogue((Turn("text", text),), None, None, "x:1") for text in ("town", "SELECT name FROM", "name")
    ]
    answers = [[7], [5, 6], [9, 3, 4]]
    texts = [[*found.templates.prompt(s.turns), *a] for s, a in zip(samples, answers, strict=True)]
    assert found(samples, answers) == [sum(n * token for n, token in enumerate(text)) for text in texts]
    assert len({len(text) for text in texts}) > 1  # padding takes part


def test_answers_of_a_batch_are_those_of_each_prompt_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of unequal lengths, the likeliest tokens of a real model."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    from muster.dialogues import rollouts

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    spread = SimpleNamespace(summon_full_params=lambda *_, **__: nullcontext())
    monkeypatch.setattr(rollouts, "unwrap_model_for_generation", lambda *_, **__: nullcontext(model))
    monkeypatch.setattr(rollouts, "DistributedBackend", lambda _: spread)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device=torch.device("cpu")),
        model_wrapped=model,
        generating=lambda it: it,
    )
    prompts = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]]
    chosen = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=2)
    found = rollouts.generate(trainer, prompts, chosen)
    assert found == rollouts.generate(trainer, prompts, chosen, batch=1)
    assert len({tuple(each) for each in found}) == 3


def test_an_answer_has_its_end() -> None:
    from muster.dialogues.rollouts import ended

    assert (ended([5, 2, 7, 2], 2), ended([5, 7], 2), ended([2, 2], 2)) == ([5, 2], [5, 7], [2])


def test_every_rank_answers_its_share_of_the_held_out_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt once; the figures are those of all."""
    from muster.dialogues import rollouts

    told: list[Any] = []

    class Held(list[str]):
        samples, tokens = list("abcde"), [[n] for n in range(5)]

    monkeypatch.setattr(rollouts, "generate", lambda _, prompts, *__, **___: [[9] * p[0] for p in prompts])
    monkeypatch.setattr(rollouts, "generation_config", lambda *_, **__: None)
    monkeypatch.setattr(rollouts, "gather", lambda mine: told.append(mine) or told)
    for rank in (0, 1):
        nothing: Any = None
        ranked = rollouts.Rollouts(
            encoding=SimpleNamespace(tokenizer=None),  # type: ignore[arg-type]
            prompts=nothing,
            scorer=lambda samples, answers: [float(ord(each)) for each in samples],  # type: ignore[arg-type]
            generation=nothing,
        )
        ranked.eval_dataset = SimpleNamespace(inner=Held("abcde"))
        ranked.args = SimpleNamespace(world_size=2, process_index=rank)
        found = ranked.evaluation_loop()
    assert found.num_samples == 5
    assert found.metrics["eval_reward"] == sum(map(ord, "abcde")) / 5
    assert found.metrics["eval_completions/mean_length"] == sum(range(5)) / 5


def test_a_reward_in_a_batch_is_that_of_the_text_alone() -> None:
    """It is read at each text's last token, whatever the tokenizer pads with."""
    import torch

    from muster.dialogues.rewarding import make_reward_model, rewards
    from muster.worker.data.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(["SELECT name FROM town"] * 9, 300)
    tokenizer.pad_token = tokenizer.eos_token
    small = [f"model.config.{name}=16" for name in ("hidden_size", "intermediate_size")]
    context: Any = SimpleNamespace(
        recipe=load_recipe("reward", small), main=True, engine=None, spec=SimpleNamespace(made_by_first=False)
    )
    model = make_reward_model(context, tokenizer).eval()
    texts = [[5, 6, 7, 8, 9], [7], [6, 4]]
    alone = [rewards(model, [text], tokenizer.pad_token_id).item() for text in texts]
    assert rewards(model, texts, tokenizer.pad_token_id).tolist() == pytest.approx(alone, abs=1e-6)
    torch.testing.assert_close(rewards(model, texts, tokenizer.pad_token_id, 1), torch.tensor(alone))
    assert len(set(alone)) == 3


def test_a_function_may_change_the_lists_that_it_is_given(tmp_path: Path, database: Path) -> None:
    found = scorer(tmp_path, "answers.reverse(); return [0.0] * len(answers)", execution=True)
    answers = [found.tokenizer(text)["input_ids"] for text in (str(asked(database).answer), "SELECT 1")]
    assert found([asked(database)] * 2, answers) == [1, 0]


def test_answers_are_run_where_nothing_else_rewards_them(tmp_path: Path) -> None:
    """Also in the shipped recipes, of which another reward takes the place."""
    for name in ("grpo", "rloo", "ppo"):
        alone, model, both = (
            load_recipe(name, given)
            for given in (
                [],
                [f"reward.model={tmp_path}"],
                [f"reward.model={tmp_path}", "reward.execution=true"],
            )
        )
        assert [each.reward.executes for each in (alone, model, both)] == [True, False, True]  # type: ignore[attr-defined]
    assert not load_recipe("grpo", ["reward.execution=false"]).reward.given  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return [1.0]", "gave 1 rewards for 2 answers"),
        ("return ['good', 'bad']", "gave 'good' for an answer to the prompt of x:1"),
        ("return [None, 1.0]", "gave None for an answer to the prompt of x:1"),
        ("return [0, 10**400]", "gave 1000.* for an answer to the prompt of x:1"),
        ("return {0: 1.0, 1: 2.0}", "returned a dict"),
        ("return '11'", "returned a str"),
        ("return None", "returned a NoneType"),
        ("raise SystemExit(3)", "raised SystemExit: 3 \\(.*rewards.py:2\\)"),
        ("return (1 / 0 for each in answers)", "raised ZeroDivisionError.*rewards.py:2\\)"),
        ("import json; json.loads('no')", "raised JSONDecodeError.*rewards.py:2\\)"),
        ("return [float('inf'), 0]", "gave inf for an answer to the prompt of x:1"),
        ("raise KeyError('oh')", "raised KeyError: 'oh' \\(.*rewards.py:2\\)"),
    ],
)
def test_a_function_that_goes_wrong(tmp_path: Path, body: str, what: str) -> None:
    found = scorer(tmp_path, body)
    with pytest.raises(DataError, match=what) as told:
        found([asked(None)] * 2, [[5], [6]])
    assert str(told.value.where).endswith("rewards.py:reward")


@pytest.mark.parametrize(("body", "name"), [("syntax error", "reward"), ("pass", "nowhere")])
def test_a_function_that_cannot_be_loaded(tmp_path: Path, body: str, name: str) -> None:
    from muster.dialogues.scoring import load_function

    (tmp_path / "rewards.py").write_text(f"def reward(a, b, c):\n    {body}\n")
    with pytest.raises(RecipeError, match="cannot be loaded"):
        load_function(f"{tmp_path}/rewards.py:{name}")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "opt"])
def test_a_reward_is_read_at_the_end_where_padding_is_the_end(kind: str, tmp_path: Path) -> None:
    """GPT-2 has no pad token, and is padded with its end of text, which each answer ends with."""
    import torch

    from muster.dialogues.rewarding import make_reward_model, read_at_end, rewards
    from muster.dialogues.scoring import Scorer
    from muster.worker.data.tokenizer import train_tokenizer
    from muster.workloads.reward.train import Answerer

    words = train_tokenizer(["one two three"] * 9, 300)
    words.pad_token = words.eos_token
    end = words.eos_token_id
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    recipe: Any = recipe_from(
        {"workload": "reward", "model": {"init": "random", "config": {"model_type": kind, **sizes}}}
    )
    context = context_of(recipe)
    model = make_reward_model(context, words).eval()
    texts = [[5, 6, 7, 8, end], [9, 10, end], [end]]

    def read(model: Any, text: list[int]) -> float:
        with torch.no_grad():
            return float(model.score(model.base_model(torch.tensor([text]))[0][0, -1]))

    expected = [read(model, text) for text in texts]
    assert len(set(expected)) == 3
    assert rewards(model, texts, end).tolist() == pytest.approx(expected, abs=1e-6)
    assert rewards(model, texts, end, 1).tolist() == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():  # padded on the left as well
        left = model(torch.tensor([[end, end, *texts[1]]]), attention_mask=torch.tensor([[0, 0, 1, 1, 1]]))
        assert float(left.logits) != pytest.approx(read(model, texts[1][:-1]), abs=1e-6)

    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    scored: Any = recipe_from({"workload": "grpo", "reward": {"model": str(tmp_path)}})
    scorer = Scorer(context_of(scored), scored, words)
    samples = [Dialogue((Turn("text", "one"),), None, None, f"x:{i}") for i in range(2)]
    whole = [[*words("one", add_special_tokens=False)["input_ids"], *text] for text in texts[:2]]
    assert scorer(samples, texts[:2]) == pytest.approx([read(model, text) for text in whole], abs=1e-6)
    answerer = Answerer(tmp_path, recipe, "cpu")
    answer = [*words("one", add_special_tokens=False)["input_ids"]] * 2
    (reward,), _ = answerer.answer(["one => one"])
    assert float(reward) == pytest.approx(read(model, [*answer, end]), abs=1e-4)

    model.config.pad_token_id = end  # one that others trained so reads what it was trained on
    read_at_end(model)
    before = [read(model, text[:-1]) for text in texts[:2]]
    assert rewards(model, texts[:2], end).tolist() == pytest.approx(before, abs=1e-6)


def context_of(recipe: Any) -> Any:
    spec = SimpleNamespace(made_by_first=False)
    return SimpleNamespace(
        device="cpu", recipe=recipe, precision="fp32", local_rank=0, main=True, spec=spec, engine=None
    )


def test_a_reward_model_reads_the_same_tokens(tmp_path: Path) -> None:
    from muster.dialogues.scoring import check_tokenizer
    from muster.worker.data.tokenizer import train_tokenizer

    one, other = (train_tokenizer([text] * 9, 320) for text in ("SELECT name FROM town", "what is it, then?"))
    one.save_pretrained(str(tmp_path))
    check_tokenizer(str(tmp_path), one, "reward.model")
    with pytest.raises(RecipeError, match="another tokenizer") as found:
        check_tokenizer(str(tmp_path), other, "reward.model")
    assert found.value.where == "reward.model"


def test_wrong_sql_gives_other_rows(database: Path) -> None:
    from muster.worker.data.sqlexec import same_result
    from muster.worker.data.sqlgen.wrong import wrong_queries

    right = [
        "SELECT name FROM town WHERE size > 1", "SELECT max(size) FROM town", "SELECT name FROM town",
        "SELECT count(*) FROM town WHERE name = 'A'",
    ]  # fmt: skip
    pairs = [(sql, database) for sql in right] * 5
    found = wrong_queries(pairs, seed=3)
    assert found == wrong_queries(pairs, seed=3) != wrong_queries(pairs, seed=4)
    assert len(found) == len(pairs)
    assert not any(same_result(database, wrong, sql) for wrong, (sql, _) in zip(found, pairs, strict=True))


def test_a_hubs_rows_are_read_by_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sets of DeepSpeed-Chat have them; a row that cannot be used is told, or left out."""
    from datasets import Dataset

    from muster.worker.data import hub

    rows = [
        {"prompt": "\n\nHuman: A\n\nAssistant:", "response": " r", "chosen": " b", "rejected": " c"},
        {"prompt": "\n\nHuman: B\n\nAssistant:", "response": " r", "chosen": " b", "rejected": " b"},
    ]
    parts = {"train": rows, "validation": [], "test": rows[:1], "other": rows[1:]}
    monkeypatch.setattr(hub, "load", lambda *_, **__: {k: Dataset.from_list(v) for k, v in parts.items()})
    place = ("Dahoas/rm-static", None, Splits())
    read = partial(hub.hub_samples, Wanted(pairs=True).form, *place)
    with pytest.raises(DataError, match="is the chosen one") as told:
        read()
    assert told.value.where == "Dahoas/rm-static, train[1]"
    errors: list[DataError] = []
    samples = read(skip=errors.append)
    train, held, notes = samples.train, samples.held_out, samples.notes
    assert any("response" in note for note in notes) and any("other" in note for note in notes)
    assert len(train) == len(held) == len(errors) == 1
    assert (train[0].answer, train[0].rejected) == (" b", " c")
    assert json.dumps(train[0].question).startswith('"\\n\\nHuman: A')
    pairs = hub.hub_samples(PairData().form, *place, limit=1)
    assert [(each.input, each.target) for each in pairs.train] == [(rows[0]["prompt"], " r")]
    assert any("chosen, rejected" in note for note in pairs.notes) and len(pairs.held_out) == 1
