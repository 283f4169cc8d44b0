"""A rank whose libraries hold other settings than the recipe says does not start."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from muster.core.errors import WorkerError
from muster.core.recipe import recipe_from
from tests.real.test_contracts_worker import smallest_recipe
from tests.support import train_here

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

StartedCollective = tuple[Any, tuple[Any, ...], dict[str, Any]]


def begun(folder: Path, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> StartedCollective:
    """The watch of a training that started, and what it was called with."""
    from muster.worker.settings import SettingsWatch

    calls: list[StartedCollective] = []
    original = SettingsWatch.on_train_begin

    def kept(watch: Any, *given: Any, **named: Any) -> None:
        calls.append((watch, given, named))
        original(watch, *given, **named)

    monkeypatch.setattr(SettingsWatch, "on_train_begin", kept)
    data["checkpoint"] |= {"every": None, "model": False}
    data["evaluate"] |= {"every": None, "after": False}
    train_here(folder, data)
    monkeypatch.undo()
    (found,) = calls
    found[0].trainer.accelerator = SimpleNamespace(mixed_precision="no")  # what was its state is reset
    return found


def refused(found: StartedCollective, planted: AbstractContextManager[Any]) -> str | None:
    """Which setting is refused where another one was planted; None: none is."""
    watch, given, named = found
    with planted:
        try:
            watch.on_train_begin(*given, **named)
        except WorkerError as error:
            return error.where
    return None


def test_every_setting_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = smallest_recipe("sft")
    data["train"] |= {"weight_decay": 0.1, "warmup": 1, "clip": 0.7, "label_smoothing": 0.1}
    data["model"]["config"] |= {"eos_token_id": 9}  # of a published model, whose tokenizer this is not
    found = begun(tmp_path, data, monkeypatch)
    watch, (args, *_), named = found
    first, last = named["optimizer"].param_groups
    scheduler = named["lr_scheduler"]
    own = mock.patch.object
    planted: dict[str, list[AbstractContextManager[Any]]] = {
        "train.seed": [
            own(args, "seed", 7),
            own(args, "data_seed", 7),
            own(watch.trainer.sampler, "seed", 7),
        ],
        "train.clip": [own(args, "max_grad_norm", 1.0)],
        "train.label_smoothing": [
            own(args, "label_smoothing_factor", 0.1),
            own(watch.trainer.compute_loss_func, "smoothing", lambda: 0.0),
        ],
        "batch.micro": [own(args, "per_device_train_batch_size", 2)],
        "batch.accumulation": [own(args, "gradient_accumulation_steps", 2)],
        "train.beta1 and beta2": [mock.patch.dict(first, betas=(0.9, 0.999))],
        "train.epsilon": [mock.patch.dict(last, eps=1e-6)],
        "train.weight_decay": [
            mock.patch.dict(first, weight_decay=0.01),
            mock.patch.dict(first, weight_decay=0.0),
            mock.patch.dict(last, weight_decay=0.2),
        ],
        "train.learning_rate": [own(scheduler, "base_lrs", [1e-5, 1e-5])],
        "the learning rate of step 2": [own(scheduler, "lr_lambdas", [lambda step: 0.5 * step])],
        "the order of samples": [own(watch.trainer, "sampler", SimpleNamespace(seed=watch.train.seed))],
        "precision": [own(watch.trainer, "accelerator", SimpleNamespace(mixed_precision="bf16"))],
        "model.config.hidden_size": [own(named["model"].config, "hidden_size", 96)],
    }
    for where, ways in planted.items():
        for way in ways:
            assert refused(found, way) == where
    assert refused(found, own(args, "seed", args.seed)) is None
    engine = SimpleNamespace(gradient_clipping=lambda: 0.0, train_micro_batch_size_per_gpu=lambda: 4)
    assert refused(found, own(watch.trainer, "model_wrapped", engine)) == "train.clip"


def test_half_precision_is_as_the_recipe_says(tmp_path: Path) -> None:
    data = smallest_recipe("sft")
    data["checkpoint"] |= {"every": None, "model": False}
    data["evaluate"] |= {"every": None, "after": False}
    assert train_here(tmp_path, data, precision="bf16")[-1].kind == "done"


@pytest.mark.parametrize("name", ["reward", "dpo"])
def test_dropout_is_off_where_layers_have_no_module_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPT's layers hand a number to a function: TRL's disable_dropout passes it over."""
    data = smallest_recipe(name)
    sizes = {"hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 2, "num_hidden_layers": 1}
    data["model"]["config"] = {"model_type": "opt", "max_position_embeddings": 256, "dropout": 0.1, **sizes}
    found = begun(tmp_path, data, monkeypatch)
    model = found[2]["model"]
    layer = model.get_decoder().layers[0] if hasattr(model, "get_decoder") else model.model.decoder.layers[0]
    assert layer.dropout == 0.0
    assert refused(found, mock.patch.object(layer, "dropout", 0.1)) == "dropout"


def test_what_a_configuration_settles_by_itself_is_no_difference() -> None:
    """T5 v1.1's published configuration says that its embeddings are not tied, and Transformers ties them."""
    from transformers import T5Config

    from muster.worker.settings import alike, of_model

    given = {"model_type": "t5", "d_model": 16, "num_layers": 1, "tie_word_embeddings": False}
    context: Any = SimpleNamespace(recipe=recipe_from({"workload": "seq2seq", "model": {"config": given}}))

    def differs(**changed: Any) -> list[str]:
        model = SimpleNamespace(config=T5Config(**{**given, **changed}))
        return [key for key, said, held in of_model(context, model) if not alike(said, held)]

    assert differs() == []
    assert differs(d_model=32) == ["model.config.d_model"]


def test_a_trainer_without_a_sampler_of_musters_has_no_order_to_compare() -> None:
    from muster.worker.settings import of_sampler

    context: Any = SimpleNamespace(recipe=recipe_from({}))
    loader = SimpleNamespace(sampler=object())
    assert list(of_sampler(context, None, loader)) == []
    compared = [key for key, *_ in of_sampler(context, object(), loader)]
    assert compared == ["train.seed", "the order of samples"]
