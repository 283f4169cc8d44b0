"""What products compute in is what the recipe says, whatever libraries have set before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.core.errors import WorkerError  # noqa: E402
from muster.worker.arithmetic import (  # noqa: E402
    FORCED,
    arithmetic_of,
    cast_weights,
    hold_arithmetic,
    set_tf32,
    tf32_is_on,
)
from muster.worker.instruments.meta import set_checkpointing  # noqa: E402


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = [place.fp32_precision for place in places()]
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True  # as PyTorch begins
    for place, precision in zip(places(), before, strict=True):
        place.fp32_precision = precision


def places() -> list[Any]:
    """Where PyTorch asks what fp32 computes in: all products, and what has a word of its own."""
    return [torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]


def rank(precision: str, device: str = "cuda") -> Any:
    return SimpleNamespace(precision=precision, device=device)


def test_what_accelerate_switches_on_is_switched_off() -> None:
    """Its AcceleratorState does so for a compiled model in fp32, after TrainingArguments(tf32=False)."""
    from transformers.utils.import_utils import enable_tf32

    enable_tf32(False)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert arithmetic_of(rank("fp32")) == "tf32"
    hold_arithmetic(rank("fp32"))
    assert arithmetic_of(rank("fp32")) == "fp32" and not tf32_is_on()
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"


def test_tf32_is_on_where_the_recipe_says_so() -> None:
    set_tf32(False)
    hold_arithmetic(rank("tf32"))
    assert arithmetic_of(rank("tf32")) == "tf32" and torch.backends.cudnn.conv.fp32_precision == "tf32"
    set_tf32(False)
    hold_arithmetic(rank("bf16"))  # of what autocast leaves in fp32
    assert tf32_is_on() and arithmetic_of(rank("bf16")) == "bf16"


@pytest.mark.parametrize(("precision", "forced"), [("fp32", "1"), ("tf32", "0")])
def test_a_rank_that_cannot_compute_so_does_not_start(
    precision: str, forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED, forced)
    with pytest.raises(WorkerError) as error:
        hold_arithmetic(rank(precision))
    assert error.value.where == "precision" and FORCED in (error.value.hint or "")


@pytest.mark.parametrize(("precision", "mode"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_every_kind_of_product_is_set(precision: str, mode: str) -> None:
    for place in places():
        place.fp32_precision = "tf32" if mode == "ieee" else "ieee"
    hold_arithmetic(rank(precision))
    assert [place.fp32_precision for place in places()] == [mode] * 4


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_older_settings_agree(precision: str, before: bool) -> None:
    """PyTorch raises where they are asked and differ; compilers of some versions ask them."""
    from transformers.utils.import_utils import enable_tf32

    enable_tf32(precision == "tf32")
    torch.backends.cuda.matmul.allow_tf32 = before
    hold_arithmetic(rank(precision))
    on = precision == "tf32"
    assert torch.backends.cuda.matmul.allow_tf32 is on and torch.backends.cudnn.allow_tf32 is on
    assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    assert tf32_is_on() is on


def test_a_cpu_is_left_alone() -> None:
    set_tf32(True)
    hold_arithmetic(rank("fp32", "cpu"))
    assert tf32_is_on() and arithmetic_of(rank("fp32", "cpu")) == "fp32"


@pytest.mark.parametrize(
    ("kind", "checkpointing", "compiled"),
    [(kind, again, False) for kind in ("gpt2", "t5", "vit", "adapters") for again in (False, True)]
    + [("gpt2", True, True)],
)
def test_a_model_computes_in_bf16_and_keeps_its_weights(
    kind: str, checkpointing: bool, compiled: bool
) -> None:
    """Loss and gradients are those of a copy in bf16, with the gradients in fp32. A copy casts its own."""
    from peft import LoraConfig, get_peft_model
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        T5ForConditionalGeneration,
    )

    torch.manual_seed(0)
    ids = torch.randint(1, 50, (2, 6))
    if kind in ("gpt2", "adapters"):
        config = AutoConfig.for_model(
            "gpt2", n_embd=16, n_layer=2, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        model, batch = AutoModelForCausalLM.from_config(config), {"input_ids": ids, "labels": ids}
    elif kind == "t5":
        config = AutoConfig.for_model(
            kind, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50, dropout_rate=0.0,
            decoder_start_token_id=0,
        )  # fmt: skip
        model, batch = T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}
    else:
        config = AutoConfig.for_model(
            kind, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=16, patch_size=8, num_labels=5, hidden_dropout_prob=0.0,
        )  # fmt: skip
        model = AutoModelForImageClassification.from_config(config)
        batch = {"pixel_values": torch.rand(2, 3, 16, 16), "labels": torch.tensor([1, 4])}
    if kind == "adapters":
        model = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False))
        model.enable_input_require_grads()
    half = copy.deepcopy(model).to(torch.bfloat16)
    cast_weights(model)
    for each in (half, model):
        set_checkpointing(each, checkpointing)
        each.train()
        (torch.compile(each, backend="aot_eager") if compiled else each)(**batch).loss.backward()
    assert float(model(**batch).loss.detach()) == float(half(**batch).loss.detach())
    own, other = dict(model.named_parameters()), dict(half.named_parameters())
    assert own.keys() == other.keys()
    for name, each in own.items():
        if not each.requires_grad:
            continue
        assert each.dtype == each.grad.dtype == torch.float32
        assert torch.equal(each.grad, other[name].grad.float()), name
    double = copy.deepcopy(model)
    double(**batch).loss.backward()
    assert all(
        torch.equal(each.grad, own[name].grad)
        for name, each in double.named_parameters()
        if each.requires_grad
    )
    twin, before = copy.deepcopy(model), float(model(**batch).loss.detach())
    with torch.no_grad():
        for each in twin.parameters():
            each.zero_()
    assert float(model(**batch).loss.detach()) == before != float(twin(**batch).loss.detach())
