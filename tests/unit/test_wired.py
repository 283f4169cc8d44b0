"""What a rank hands to Transformers: arguments, the loss, groups of parameters, and in which order."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.recipe import recipe_from

torch = pytest.importorskip("torch")

from muster.worker import arithmetic, main, uneven  # noqa: E402
from muster.worker.engine import EngineRuntime  # noqa: E402
from muster.worker.loss import FusedHead  # noqa: E402
from muster.worker.trainer import TrainerBase, adjust_model, wired  # noqa: E402


class Plain(EngineRuntime):
    def arguments(self, context: Any) -> dict[str, Any]:
        return {}


def context_of(device: str = "cuda", spread: bool = False, **recipe: Any) -> Any:
    batch = SimpleNamespace(micro=2, accumulation=1, global_=2)
    return SimpleNamespace(
        recipe=recipe_from({"workload": "causal-lm", **recipe}), batch=batch, device=device,
        precision="fp32", checkpoints=Path("checkpoints"), base=Path("run"), shared=True, world_size=1,
        engine=Plain(), grouped=False,
        spec=SimpleNamespace(shards_weights=lambda stage, ranks: spread),
    )  # fmt: skip


def test_no_copy_waits_and_cuda_graphs_are_what_the_compiler_is_asked_for() -> None:
    given = main.training_arguments(context_of(train={"compile": "cuda-graphs"}))
    assert given["accelerator_config"] == {"non_blocking": True} and given["dataloader_pin_memory"]
    assert given["torch_compile"] is True and given["torch_compile_mode"] == "reduce-overhead"
    assert "torch_compile_mode" not in main.training_arguments(context_of(train={"compile": True}))
    given = main.training_arguments(context_of("cpu"))
    assert given["accelerator_config"] == {"non_blocking": False}


@pytest.mark.parametrize("most", [1, 64])
def test_held_out_batches_are_no_larger_than_those_of_training(most: int) -> None:
    """The logits of larger ones may not fit beside what was planned."""
    context = context_of(evaluate={"batch": most})
    assert main.training_arguments(context)["per_device_eval_batch_size"] == context.batch.micro


def test_what_an_engine_adds_stands_beside() -> None:
    given = {"bf16": False, "accelerator_config": {"non_blocking": True}}
    own = {"bf16": True, "accelerator_config": {"split_batches": True}}
    assert main.with_engine(given, own) == {
        "bf16": True,
        "accelerator_config": {"non_blocking": True, "split_batches": True},
    }


class _Tried(Exception):
    pass


def test_arithmetic_is_held_when_the_trainer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries set it while it is made, and the first steps are tried right after."""
    done = []

    def build(context: Any, arguments: Any) -> Any:
        done.append("built")
        return SimpleNamespace(trainer=SimpleNamespace(accelerator=SimpleNamespace(scaler=None), model=None))

    def settle(context: Any, trainer: Any) -> None:
        raise _Tried

    monkeypatch.setattr(arithmetic, "hold_arithmetic", lambda context: done.append("held"))
    monkeypatch.setattr(uneven, "settle_shares", settle)
    workload: Any = SimpleNamespace(build=build)
    with pytest.raises(_Tried):
        main._train(context_of(), workload)
    assert done == ["built", "held"]


@pytest.mark.parametrize("compiled", [False, True])
def test_no_hook_is_on_a_compiled_model(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One would end its graph."""
    from muster.worker.instruments import attach

    monkeypatch.setattr(attach, "SettingsWatch", lambda *_: None)
    context = context_of("cpu", train={"compile": compiled})
    for name in ("emit", "main"):
        setattr(context, name, SimpleNamespace(pulse=None))

    class Made:
        model = None

        def add_callback(self, callback: Any) -> None:
            pass

    built = SimpleNamespace(trainer=Made(), flops=False)
    _, meter, _ = attach.attach_instruments(context, built)  # type: ignore[arg-type]
    assert (meter.computing is None) is compiled


def test_what_is_around_a_loss_is_around_any_trainers() -> None:
    """In order, with the model; a trainer that is made already keeps what it is."""
    from muster.worker.instruments.attach import instrumented

    done: list[str] = []

    class Own:
        def compute_loss(self, model: str, inputs: str, more: str = "") -> str:
            done.append(f"loss of {inputs}{more}")
            return model

    @contextmanager
    def around(name: str, model: str) -> Iterator[None]:
        done.append(f"{name} in with {model}")
        yield
        done.append(f"{name} out")

    nothing: Any = None
    trainer: Any = Own()
    watches = [functools.partial(around, name) for name in ("first", "second")]
    trainer.__class__ = instrumented(Own, nothing, nothing, watches)
    assert trainer.compute_loss("model", "rows", more=" and more") == "model" and isinstance(trainer, Own)
    assert done == [
        "first in with model",
        "second in with model",
        "loss of rows and more",
        "second out",
        "first out",
    ]
    assert instrumented(Own, nothing, nothing).compute_loss is Own.compute_loss


@pytest.mark.parametrize(
    ("train", "spread", "inside"),
    [
        ({"compile": True, "fused_loss": False}, False, True),
        ({"compile": True, "fused_loss": False}, True, None),  # FSDP casts what a model returns
        ({"compile": False, "fused_loss": False}, False, None),
        ({"compile": True, "fused_loss": "auto"}, False, False),
        ({"compile": True, "fused_loss": True}, True, False),
    ],
)
def test_where_the_loss_is_computed(train: dict[str, Any], spread: bool, inside: bool | None) -> None:
    """In the compiled graph, in parts beside it, or (None) of the logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, n_positions=8, vocab_size=20)
    trainer = wired(
        lambda **given: SimpleNamespace(**given, state=SimpleNamespace(epoch=0)),
        context_of(train=train, spread=spread),
        AutoModelForCausalLM.from_config(config),
        SimpleNamespace(per_device_eval_batch_size=2),
        train=[{}] * 4,
        held_out=[],
        lengths=[8] * 4,
        collator=None,
        processing=None,
        moved=True,
    )
    head = trainer.compute_loss_func.head
    assert (None if head is None else head.inside) is inside
    assert isinstance(trainer.model.get_output_embeddings(), FusedHead) is (inside is not None)


def test_an_optimizer_of_deepspeed_decays_what_every_engine_decays() -> None:
    from accelerate.utils import DummyOptim
    from transformers import Trainer

    class Base:
        get_decay_parameter_names = Trainer.get_decay_parameter_names

        def create_optimizer(self, model: Any = None) -> Any:
            return DummyOptim([*self.model.parameters()])  # type: ignore[attr-defined]

    class Own(TrainerBase, Base):  # type: ignore[misc]
        args = SimpleNamespace(weight_decay=0.3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))

    first, norm, last = Own.model
    first.weight.requires_grad_(False)
    decayed, plain = object.__new__(Own).create_optimizer().params
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert [id(each) for each in decayed["params"]] == [id(last.weight)]
    assert {id(each) for each in plain["params"]} == {
        id(each) for each in (first.bias, norm.weight, norm.bias, last.bias)
    }


@pytest.mark.parametrize("wanted", [False, True])
def test_a_models_dropout_stays_where_the_recipe_wants_it(wanted: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    context = context_of("cpu")
    kept = {name: getattr(context.recipe, name) for name in ("keeps_half", "computes_half", "precision")}
    context.recipe = SimpleNamespace(dropout=wanted, **kept)
    adjust_model(context, model)
    assert bool((model(torch.ones(64)) == 0).any()) is wanted
