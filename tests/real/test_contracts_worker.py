"""The plug-ins that ranks import keep what their packages promise."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import RecipeError
from muster.core.recipe import recipe_class, recipe_from
from muster.core.recipes import dump_yaml, load_recipe, shipped_recipes
from muster.core.registry import load_plugin, plugin_names
from muster.runs.afterwards import loading_lines
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.sealed import compare, what_is_wrong
from tests.support import needs_torch, train_here
from tests.unit.test_contracts import promised

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


@pytest.mark.parametrize("name", sorted(plugin_names("muster.worker.engines")))
def test_an_engine_has_what_is_promised(name: str) -> None:
    import muster.engines
    from muster.worker.engine import runtime_of

    functions = promised(muster.engines.__doc__ or "")
    assert set(functions) == {"join", "arguments"}
    module = runtime_of(name)
    for function, parameters in functions.items():
        signature = inspect.signature(getattr(module, function))
        assert list(signature.parameters) == parameters
        assert inspect.getdoc(getattr(module, function))


# Of those whose ranks are Muster's: a command's are the user's program (tests/real/test_run.py).
OWN = [name for name in sorted(plugin_names("muster.worker.workloads")) if not recipe_class(name).foreign]


@pytest.mark.parametrize("name", OWN)
def test_a_workload_has_what_is_promised(name: str) -> None:
    import muster.workloads
    from muster.worker.answering import Answerer

    promises = promised(muster.workloads.__doc__ or "")
    assert set(promises) == {"build", "Answerer"}
    module = load_plugin("muster.worker.workloads", name, "train")
    if hasattr(module, "measure"):  # it trains nothing
        assert list(inspect.signature(module.measure).parameters) == ["context"]
        assert inspect.getdoc(module.measure) and not hasattr(module, "build")
        return
    for promise, parameters in promises.items():
        assert list(inspect.signature(getattr(module, promise)).parameters) == parameters
        assert inspect.getdoc(getattr(module, promise))
    inspect.signature(module.Answerer.answer).bind("self", ["question"])
    assert issubclass(module.Answerer, Answerer)
    scores = module.Answerer.score is not Answerer.score
    assert hasattr(module, "questions") != scores  # what `muster ask --evaluate` needs


# What keeps a source small; one that is not here is taken as its recipe has it.
SMALL = {"generated": {"train": 64, "validation": 4}, "library": {"megabytes": 0.2}}


def smallest_recipe(workload: str) -> dict[str, Any]:
    """A shipped recipe of the workload that needs no file and no network, as plain data."""
    for name in shipped_recipes():
        recipe = load_recipe(name)
        offline = recipe.data.source == recipe.data.embedded and recipe.model.init == "random"
        if recipe.workload.replace("-", "_") == workload and recipe.trains and offline:
            data = recipe.as_dict()
            source = str(recipe.data.source)
            data["data"] |= {source: {**data["data"][source], **SMALL.get(source, {})}, "limit": 64}
            data["engine"] = {"name": "ddp"}
            data["train"] |= {"max_steps": 3, "warmup": 0}
            data["evaluate"] |= {"limit": 3, "every": 2}
            data["measure"] |= {"window": 1}
            data["checkpoint"] |= {"every": 2}
            return data
    raise AssertionError(f"{workload} has no recipe that runs anywhere")


@pytest.mark.parametrize("name", OWN)
def test_a_workload_trains_measures_and_answers(name: str, tmp_path: Path) -> None:
    """One rank, in this process: its events, whole checkpoints, its saved model, and an answer of that."""
    module = load_plugin("muster.worker.workloads", name, "train")
    if hasattr(module, "measure"):
        pytest.skip("it trains nothing")
    data = smallest_recipe(name)
    told = train_here(tmp_path, data)
    windows = [event for event in told if isinstance(event, events.Window)]
    assert [window.samples for window in windows] == [4, 4, 4]
    assert all(0 < window.tokens <= window.padded_tokens for window in windows)
    assert any(isinstance(event, events.Evaluated) and event.step == 2 for event in told)
    saved = [event for event in told if isinstance(event, events.Saved)]
    assert [event.step for event in saved] == [2, 3, None]  # by its schedule, of the last step, the model
    for event in saved[:2]:
        assert event.path == str(tmp_path / "checkpoints" / f"checkpoint-{event.step}")
        assert event.bytes > 0
        assert event.manifest  # what an agent says before it goes on from one:
        assert what_is_wrong(event.path, [event.manifest])[0] is None
    assert compare(str(tmp_path / "model"), saved[2].files)[0] is None
    assert isinstance(told[-1], events.Done) and told[-1].step == 3
    assert told[-1].weights_changed is not None
    assert told[-1].weights_changed or name in ("grpo", "rloo")  # whose answers no one would reward yet
    recipe = recipe_from(data)
    answerer = module.Answerer(tmp_path / "model", recipe, "cpu")
    if not hasattr(module, "questions"):
        question = "def => ghi"  # a reward model judges answers
        assert answerer.score(tmp_path / "data", 4)["seconds"] > 0
    else:
        question = module.questions(recipe, tmp_path / "data")[0].question
    answers, seconds = answerer.answer([question])
    assert len(answers) == 1 and isinstance(answers[0], str)
    assert seconds > 0
    limited = "held-out figures are of 3 of 4 held-out samples (evaluate.limit)"
    started = next(event for event in told if isinstance(event, events.Started))
    assert (limited in started.notes) is (name not in ("causal_lm", "image_classification"))
    if recipe.tokenized:
        assert lines_say(RunFolder(tmp_path), data, question) == asked(tmp_path, data, question)


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("name", "template", "closed"),
    [
        ("sft", None, False),
        ("sft", CHATML, False),
        ("sft", CHATML, True),
        ("reward", CHATML, True),
        ("grpo", CHATML, False),
    ],
)
def test_the_lines_say_what_ask_says(name: str, template: str | None, closed: bool, tmp_path: Path) -> None:
    """Also of plain prompts, and with a chat template of the tokenizer's own. `closed`: with a token for the
    end of an answer."""
    from muster.worker.data.tokenizer import train_tokenizer

    data = smallest_recipe(name)
    rows = [{"prompt": f"say {word} {word}", "chosen": word, "rejected": "no"} for word in WORDS]
    if template:
        for row in rows:
            row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        tokenizer = train_tokenizer([f"say {' '.join(WORDS)} no <|im_start|>assistant user"] * 9, 300)
        tokenizer.chat_template, tokenizer.pad_token = template, tokenizer.eos_token  # as GPT-2 is used
        if closed:
            tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
            tokenizer.split_special_tokens = False
        tokenizer.save_pretrained(tmp_path / "words")
        data["model"]["tokenizer"] = str(tmp_path / "words")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "ones.py").write_text(
        "def ones(prompts, answers, expected):\n    return [1.0] * len(answers)\n"
    )
    data["data"] |= {"generated": None, "path": str(tmp_path / "rows.jsonl"), "validation_fraction": 0.3}
    data["train"] |= {"max_steps": 1}
    if name == "grpo":
        data["reward"] |= {"function": f"{tmp_path / 'ones.py'}:ones"}
    done = train_here(tmp_path, data)[-1]
    assert isinstance(done, events.Done) and done.weights_changed is (
        name != "grpo"
    )  # all are worth the same
    question = "say one one" + (" => one" if name == "reward" else "")
    assert lines_say(RunFolder(tmp_path), data, question) == asked(tmp_path, data, question)


def asked(folder: Path, data: dict[str, Any], question: str) -> str:
    """What `muster ask` says."""
    recipe = recipe_from(data)
    module = load_plugin("muster.worker.workloads", recipe.workload, "train")
    answers, _ = module.Answerer(folder / "model", recipe, "cpu").answer([question])
    return answers[0].strip()


def lines_say(run: RunFolder, data: dict[str, Any], question: str) -> str:
    """What the lines print that `ask` and `train` show. The model's weights are made larger: each token of a
    prompt then changes the answer."""
    from safetensors.torch import load_file, save_file

    file = run.model / "model.safetensors"
    weights = {name: 4 * each if each.ndim > 1 else each for name, each in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    run.recipe.write_text(dump_yaml(data))
    run.predictions.write_text(json.dumps({"question": question}) + "\n")
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(loading_lines(run), {})
    return told.getvalue().strip()


def test_a_number_that_transformers_would_contradict_is_bad_input() -> None:
    """Its own words of many lines become one line that names the key; exit code 2."""
    from transformers.integrations import HfTrainerDeepSpeedConfig

    from muster.worker.explain import explain

    config = HfTrainerDeepSpeedConfig({"scheduler": {"params": {"total_num_steps": 1000}}})
    with pytest.raises(ValueError) as caught:
        config.trainer_config_finalize(SimpleNamespace(get_warmup_steps=lambda _: 0), None, 8)
    told = explain(caught.value)
    assert isinstance(told, RecipeError)
    assert str(told).startswith("engine.config: scheduler.params.total_num_steps=1000, but here")
    assert "\n" not in str(told)
    assert "auto" in (told.hint or "")


def test_a_hub_that_does_not_answer_is_named_as_such() -> None:
    """As Transformers says it, and without its advice of many lines."""
    from muster.worker.models import load_from

    def loader(name: str) -> None:
        raise OSError(
            f"We couldn't connect to 'https://huggingface.co' to load the files of {name}.\nCheck it."
        )

    with pytest.raises(RecipeError) as caught:
        load_from(loader, "t5-small", "model.name")
    assert (caught.value.failure, caught.value.where) == ("hf_offline", "model.name")


@pytest.mark.parametrize("name", ["causal_lm", "seq2seq", "image_classification", "sft"])
def test_a_model_that_computes_in_bf16_trains(name: str, tmp_path: Path) -> None:
    """As autocast does to rounding, with layers that are computed again; its weights are saved in fp32."""
    from safetensors.torch import load_file

    losses, operations = {}, {}
    for autocast in (True, False):
        data = smallest_recipe(name)
        data["train"] |= {"autocast": autocast, "gradient_checkpointing": True}
        data["evaluate"] |= {"after": False}
        (folder := tmp_path / str(autocast)).mkdir()
        said = train_here(folder, data, precision="bf16")
        losses[autocast] = [each.loss for each in said if isinstance(each, events.Log | events.Evaluated)]
        windows = [each for each in said if isinstance(each, events.Window)]
        operations[autocast] = [(each.model_flops, each.hardware_flops) for each in windows]
        weights = [each for file in folder.rglob("model.safetensors") for each in load_file(file).values()]
        assert weights and {str(each.dtype) for each in weights} == {"torch.float32"}
    assert losses[False] == pytest.approx(losses[True], rel=0.01) and losses[False] != losses[True]
    assert operations[False] == operations[True] and None not in operations[True][0]
