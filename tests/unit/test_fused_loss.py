"""Output layer and loss in one: the loss and all gradients are those of the logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from muster.core import loss_parts as losses  # noqa: E402
from muster.worker.loss import IGNORED, LossSums, TokenLoss, fused, fused_head  # noqa: E402

ROWS, WIDTH, CLASSES = 50, 16, 97
MODELS: dict[str, dict[str, Any]] = {
    "t5": {
        "d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 1, "decoder_start_token_id": 0,
    },
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32},
    "opt": {
        "hidden_size": 16, "ffn_dim": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
        "word_embed_proj_dim": 8, "max_position_embeddings": 32,
    },
    "llama": {
        "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_hidden_layers": 1,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows at once, and more than that is many."""
    monkeypatch.setattr(losses, "SMALL", 8 * CLASSES)
    monkeypatch.setattr(losses, "SMALL_ON_CPU", 8 * CLASSES)


def labels_of(rows: int = ROWS) -> Any:
    labels = torch.randint(0, CLASSES, (rows,))
    labels[::7] = IGNORED
    labels[-9:] = IGNORED  # a whole part
    return labels


def both(layer: Any, hidden: Any, labels: Any, smoothing: float, **autocast: Any) -> list[dict[str, Any]]:
    """The loss and the gradients by logits, and by the fused layer."""
    found = []
    for as_one in (False, True):
        layer.zero_grad(set_to_none=True)
        given = hidden.clone().requires_grad_()
        head = fused(layer) if as_one else None
        loss = TokenLoss(lambda: smoothing, head=head)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)), loss.expecting(labels):
            outputs = {"logits": layer(given)}
        assert (outputs["logits"].ndim == 0) is as_one
        value = loss(outputs, labels, num_items_in_batch=torch.tensor(7))
        (1024 * value).backward()  # a loss scale
        gradients = {name: each.grad for name, each in layer.named_parameters()}
        found.append({"loss": value.detach(), "hidden": given.grad, **gradients})
    return found


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_it_is_the_loss_of_the_logits(smoothing: float, bias: bool, frozen: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, CLASSES, bias=bias).requires_grad_(not frozen)
    plain, other = both(layer, torch.randn(ROWS, WIDTH), labels_of(), smoothing)
    assert plain.keys() == other.keys()
    assert plain["loss"] > 1 and plain["hidden"].abs().sum() > 1
    for name, value in plain.items():
        if frozen and name not in ("loss", "hidden"):
            assert value is None and other[name] is None
        else:
            torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-3)  # 1024 times the gradient


@pytest.mark.parametrize("way", ["half", "autocast"])
def test_in_half_precision_it_is_as_near_to_fp32_as_logits_are(way: str) -> None:
    torch.manual_seed(0)
    layer, hidden, labels = torch.nn.Linear(WIDTH, CLASSES, bias=False), torch.randn(ROWS, WIDTH), labels_of()
    exact = both(layer, hidden, labels, 0.0)[0]
    if way == "half":
        layer, hidden = layer.bfloat16(), hidden.bfloat16()
    plain, other = both(layer, hidden, labels, 0.0, **({"autocast": True} if way == "autocast" else {}))
    for name, value in exact.items():
        assert other[name].dtype == (torch.float32 if name == "loss" else plain[name].dtype)
        ours, theirs = ((one[name].float() - value).norm() / value.norm() for one in (other, plain))
        assert ours <= max(1.2 * theirs, 0.004)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_of_what_the_model_returns_changes_nothing(dtype: Any) -> None:
    """FSDP casts outputs to the type of its parameters: this sum is infinite in fp16."""
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(WIDTH, CLASSES), torch.randn(20_000, WIDTH)
    labels = torch.randint(0, CLASSES, (20_000,))
    found = []
    for cast in (False, True):
        layer.zero_grad(set_to_none=True)
        loss = TokenLoss(head=fused(layer))
        with loss.expecting(labels):
            summed = layer(hidden)
        returned = summed.to(dtype) if cast else summed
        value = loss((returned,), labels, num_items_in_batch=torch.tensor(19_997))
        value.backward()
        found.append((value.item(), layer.weight.grad))
    assert returned.isinf() or dtype is torch.bfloat16
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def model_of(kind: str, shape: str = "") -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    given = {**MODELS[shape or kind], "vocab_size": CLASSES, "use_cache": False}  # as it is trained
    config = AutoConfig.for_model(kind, **given)
    return (AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM).from_config(config).eval()


def batch_of(kind: str) -> tuple[dict[str, Any], Any]:
    tokens, labels = torch.randint(0, CLASSES, (3, 12)), labels_of(36).view(3, 12)
    return {"input_ids": tokens, **({"decoder_input_ids": tokens} if kind == "t5" else {})}, labels


@pytest.mark.parametrize("kind", MODELS)
def test_a_models_gradients_are_the_same(kind: str) -> None:
    """Tied weights too; in evaluation the tally is."""
    model, (inputs, labels) = model_of(kind), batch_of(kind)
    found = []
    for head in (None, fused_head(model)):
        tally = LossSums()
        loss = TokenLoss(moved=kind != "t5", tally=tally, head=head)
        model.zero_grad(set_to_none=True)
        with loss.expecting(labels):
            loss(model(**inputs), labels).backward()
        with loss.expecting(labels), torch.no_grad():
            loss(model(**inputs), labels)
        assert model(**inputs).logits.shape == (3, 12, CLASSES)  # when no loss is expected
        found.append((tally, {name: each.grad for name, each in model.named_parameters()}))
    (plain, gradients), (other, others) = found
    assert other.count == plain.count and float(other.loss) == pytest.approx(float(plain.loss))
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-6)


def test_few_rows_keep_their_logits_and_always_means_always() -> None:
    """And labels are of one head alone: another model's output layer is asked meanwhile, and has none."""
    layer, hidden, labels = torch.nn.Linear(WIDTH, CLASSES), torch.randn(8, WIDTH), labels_of()[:8]
    other = fused(torch.nn.Linear(WIDTH, CLASSES), always=True)
    for ways, summed in (({"always": False}, False), ({"always": True}, True), ({"inside": True}, True)):
        loss = TokenLoss(head=fused(layer, **ways))
        with loss.expecting(labels):
            assert (layer(hidden).ndim == 0) is summed
            assert other(hidden).shape == (8, CLASSES)
        assert layer(hidden).shape == (8, CLASSES)


def test_a_second_backward_pass_is_refused() -> None:
    layer, labels = torch.nn.Linear(WIDTH, CLASSES), labels_of()
    loss = TokenLoss(head=fused(layer))
    with loss.expecting(labels):
        summed = loss((layer(torch.randn(ROWS, WIDTH)),), labels)
    summed.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        summed.backward()


def test_a_compiled_model_computes_it_too() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, CLASSES)
    model = torch.nn.Sequential(*layers)
    hidden, labels = torch.randn(ROWS, WIDTH), labels_of()
    loss = TokenLoss(head=fused(model[2]))
    compiled = torch.compile(model, backend="eager")
    with loss.expecting(labels):
        found = loss((compiled(hidden),), labels)
    expected = functional.cross_entropy(model(hidden), labels, ignore_index=IGNORED)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_compiler_does_not_take_labels_for_weights() -> None:
    """It takes tensors that modules hold for such: CUDA graphs are recorded anew where one has moved."""
    layer, labels = torch.nn.Linear(WIDTH, CLASSES), labels_of()
    head = fused(layer, inside=True)
    loss = TokenLoss(head=head)
    compiled, seen = torch.compile(torch.nn.Sequential(layer), backend="eager"), []
    original = torch._dynamo.decorators.mark_static_address
    torch._dynamo.decorators.mark_static_address = lambda each, **_: (seen.append(each), original(each, **_))
    try:
        with loss.expecting(labels):
            compiled(torch.randn(ROWS, WIDTH))
    finally:
        torch._dynamo.decorators.mark_static_address = original
    assert seen and not any(each.shape == labels.shape and each.dtype == labels.dtype for each in seen)


def test_models_that_change_their_logits_afterwards_keep_them() -> None:
    for kind, wanted in (("gemma2", "auto"), ("llama", False)):
        model = model_of(kind, shape="llama")
        assert fused_head(model, wanted=wanted) is None
        assert type(model.get_output_embeddings()) is torch.nn.Linear


def test_an_output_layer_with_adapters_keeps_its_logits() -> None:
    peft = pytest.importorskip("peft")
    for targets, possible in ((["q_proj"], True), (["lm_head"], False)):
        adapted = peft.get_peft_model(model_of("llama"), peft.LoraConfig(r=2, target_modules=targets))
        assert (fused_head(adapted) is not None) is possible


def test_a_layer_that_has_trained_can_be_copied() -> None:
    """As it is where speeds are measured before operations are counted; and it keeps no graph alive."""
    layer, labels = torch.nn.Linear(WIDTH, CLASSES), labels_of()
    loss = TokenLoss(head=fused(layer))
    with loss.expecting(labels):
        loss((layer(torch.randn(ROWS, WIDTH)),), labels).backward()
    assert copy.deepcopy(layer).weight is not layer.weight
    assert layer.found.value.grad_fn is None


def test_a_models_double_has_an_output_layer_of_its_own() -> None:
    """Its operations are counted on another device, while the model itself is trained."""
    from muster.worker.instruments.meta import count, double

    model = model_of("gpt2")
    model.config.use_cache = True  # as it comes
    inputs = {"input_ids": torch.empty((4, 16), dtype=torch.long, device="meta")}
    plain = count(double(model), inputs)
    head = fused_head(model, wanted=True)
    with TokenLoss(head=head).expecting(torch.zeros((4, 16), dtype=torch.long)):
        made = double(model)
    head.wanted = None
    assert count(double(model), inputs) == plain and plain.model > 0
    assert made.get_output_embeddings() is not head


@pytest.mark.parametrize(
    ("asked", "head", "told"), [(True, None, 1), ("auto", None, 0), (True, "a layer", 0)]
)
def test_a_fused_loss_that_cannot_be_is_noted(asked: Any, head: Any, told: int) -> None:
    from types import SimpleNamespace

    from muster.worker.report import _unused

    context: Any = SimpleNamespace(recipe=SimpleNamespace(train=SimpleNamespace(fused_loss=asked)))
    assert len(_unused(context, SimpleNamespace(compute_loss_func=TokenLoss(head=head)))) == told


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_graph_has_the_loss(kind: str, smoothing: float) -> None:
    """One graph, which returns one number; loss and gradients are those of the logits, also in evaluation."""
    from torch._dynamo.testing import CompileCounterWithBackend

    model = model_of(kind)
    found = []
    for inside in (False, True):
        torch._dynamo.reset()
        own, counter = copy.deepcopy(model), CompileCounterWithBackend("aot_eager")
        head = fused_head(own, wanted=False, inside=True) if inside else None
        called = torch.compile(own, backend=counter) if inside else own
        loss, tally = TokenLoss(lambda: smoothing, moved=kind != "t5", tally=LossSums(), head=head), []
        for step in range(3):
            torch.manual_seed(step)
            batch, labels = batch_of(kind)
            with loss.expecting(labels):
                outputs = called(**batch)
            assert (outputs["logits"].ndim == 0) is inside
            loss(outputs, labels, num_items_in_batch=torch.tensor(23)).backward()
            with torch.no_grad(), loss.expecting(labels):
                assert loss.tally is not None
                loss.tally.reset()
                loss(called(**batch), labels)
                tally.append((float(loss.tally.loss), int(loss.tally.count)))
        assert not inside or counter.frame_count <= 2  # with gradients, and without
        found.append((tally, {name: each.grad for name, each in own.named_parameters()}))
    (plain, gradients), (whole, others) = found
    assert whole == [(pytest.approx(sum_, rel=1e-6), count) for sum_, count in plain]
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-6)
