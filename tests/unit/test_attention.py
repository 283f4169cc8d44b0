"""The activation monitor against a plain recomputation from each model's own projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from muster.core.batch import Batch  # noqa: E402
from muster.core.errors import RecipeError  # noqa: E402
from muster.core.recipe import recipe_from  # noqa: E402
from muster.core.trace import TraceRequest  # noqa: E402
from muster.worker.attention import UNMASKED  # noqa: E402
from muster.worker.context import Context, Emitter  # noqa: E402
from muster.worker.instruments import attention  # noqa: E402
from muster.worker.instruments.attention import AttentionMonitor, extremes, layer_names  # noqa: E402
from muster.worker.tracing import tasks  # noqa: E402
from muster.worker.tracing.tasks import Vocabulary  # noqa: E402
from muster.workloads.causal_lm import model as causal_lm  # noqa: E402
from muster.workloads.image_classification import model as image_classification  # noqa: E402
from muster.workloads.seq2seq import model as seq2seq  # noqa: E402

WIDE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40, "vocab_size": 99},
    "gpt2 by layer": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40, "vocab_size": 99,
                      "scale_attn_by_inverse_layer_idx": True},
    "opt": {**WIDE, "ffn_dim": 64, "word_embed_proj_dim": 32, "vocab_size": 99},
    "llama": {**WIDE, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 99},
    "vit": {**WIDE, "intermediate_size": 64, "image_size": 16, "patch_size": 4},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
           "vocab_size": 99, "decoder_start_token_id": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products on many threads are slower, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(family: str, implementation: str) -> tuple[Any, dict[str, Any]]:
    """A small model with weights that give every layer logits of its own, and a padded batch."""
    config = transformers.AutoConfig.for_model(family.split()[0], **FAMILIES[family])
    classes = {"vit": transformers.AutoModelForImageClassification, "t5": transformers.AutoModelForSeq2SeqLM}
    loader = classes.get(family, transformers.AutoModelForCausalLM)
    torch.manual_seed(3)
    model = loader.from_config(config, attn_implementation=implementation)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if family == "vit":
        return model.eval(), {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([0, 1, 0])}
    tokens = torch.randint(1, 99, (3, 20))
    mask = torch.ones_like(tokens)
    mask[0, 15:] = 0
    labels = tokens[:, :7].contiguous() if family == "t5" else tokens
    return model.eval(), {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def heads(tensor: Any, count: int) -> Any:
    """[batch, length, width] -> [batch, heads, length, size]."""
    return tensor.unflatten(-1, (count, -1)).transpose(1, 2)


def outputs(model: Any, inputs: dict[str, Any]) -> dict[str, list[Any]]:
    """What every projection gave, by its module's name."""
    found: dict[str, list[Any]] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: found.setdefault(name, []).append(out))
        for name, module in model.named_modules()
        if name.split(".")[-1] in ("c_attn", "q_proj", "k_proj", "q", "k")
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


def rotated(states: Any, theta: float = 10000.0) -> Any:
    """Rotary positions by complex numbers (Su et al. 2021), the halves of a head as Llama pairs them."""
    length, size = states.shape[-2:]
    frequency = theta ** (-torch.arange(0, size, 2) / size)
    angle = torch.outer(torch.arange(length).float(), frequency)
    turned = torch.complex(*states.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def plain(family: str, model: Any, inputs: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Layer -> (largest, smallest) of the whole matrix of logits, from the formula of each model."""
    seen, logits = outputs(model, inputs), {}
    if family.startswith("gpt2"):
        for index in range(2):
            q, k, _ = seen[f"transformer.h.{index}.attn.c_attn"][0].split(32, -1)
            scale = 8**-0.5 / ((index + 1) if "layer" in family else 1)
            logits[f"layer{index}"] = heads(q, 4) @ heads(k, 4).mT * scale
    elif family == "t5":
        logits = _t5(model, seen)
    else:
        stem = {"opt": "model.decoder.layers", "llama": "model.layers", "vit": "vit.layers"}[family]
        part = "attention" if family == "vit" else "self_attn"
        for index in range(2):
            q = heads(seen[f"{stem}.{index}.{part}.q_proj"][0], 4)
            k = heads(seen[f"{stem}.{index}.{part}.k_proj"][0], 2 if family == "llama" else 4)
            if family == "llama":
                q, k = rotated(q), rotated(k).repeat_interleave(2, 1)
            logits[f"layer{index}"] = q @ k.mT * 8**-0.5
    return {layer: (values.max().item(), values.min().item()) for layer, values in logits.items()}


def _t5(model: Any, seen: dict[str, list[Any]]) -> dict[str, Any]:
    """T5 scales nothing, and adds its first layer's position bias in every layer of a stack."""
    made = {}
    for stack, length in (("encoder", 20), ("decoder", 7)):
        blocks = getattr(model, stack).block
        bias = blocks[0].layer[0].SelfAttention.compute_bias(length, length)
        for index in range(2):
            name = f"{stack}.block.{index}.layer"
            q, k = (heads(seen[f"{name}.0.SelfAttention.{each}"][0], 4) for each in "qk")
            made[f"{stack}.layer{index}"] = q @ k.mT + bias
            if stack == "decoder":
                q, k = (heads(seen[f"{name}.1.EncDecAttention.{each}"][0], 4) for each in "qk")
                made[f"{stack}.layer{index}.cross"] = q @ k.mT
    return made


class Listening:
    """A monitor on a trainer that has what the monitor uses, and the events that it emitted."""

    def __init__(self, model: Any, window: int = 2, max_steps: int = 100) -> None:
        self.model = model
        self.accelerator = SimpleNamespace(sync_gradients=True)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.state = SimpleNamespace(global_step=0, max_steps=max_steps)
        recipe = recipe_from({"measure": {"window": window}})
        context: Any = SimpleNamespace(emit=self.emit, main=True, device="cpu", recipe=recipe)
        self.monitor = AttentionMonitor(context, self)
        self.monitor.on_train_begin(None, self.state, None)

    def emit(self, kind: Any, **content: Any) -> None:
        self.events.append((kind.__name__, content))

    def compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        with self.monitor.around(model):
            return model(**inputs).loss

    def step(self, *micro_steps: dict[str, Any]) -> list[Any]:
        """One optimizer step: the losses of its micro-steps."""
        self.monitor.on_step_begin(None, self.state, None)
        losses = []
        for index, inputs in enumerate(micro_steps):
            self.accelerator.sync_gradients = index == len(micro_steps) - 1
            losses.append(self.compute_loss(self.model, inputs))
            losses[-1].backward()
        self.state.global_step += 1
        self.monitor.on_step_end(None, self.state, None)
        return losses


def train(model: Any) -> Any:
    """Training mode without dropout, so that every forward pass gives the same."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.train()


@pytest.mark.parametrize(
    ("family", "implementation", "recomputed"),
    [
        *((family, name, False) for family in FAMILIES for name in ("sdpa", "eager")),
        ("llama", "sdpa", True),  # what is done again in the backward pass is not measured
    ],
)
def test_as_by_a_plain_recomputation(
    family: str, implementation: str, recomputed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every layer's extremes; and the loss and the gradients are those of the unwatched model."""
    model, inputs = make(family, implementation)
    wanted = plain(family, model, inputs)
    train(model)
    model(**inputs).loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    bare = float(model(**inputs).loss.detach())
    model.zero_grad()
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    listening = Listening(model, window=1)
    (loss,) = listening.step(inputs)
    ((kind, event),) = listening.events
    assert (kind, event["step"]) == ("Attention", 1)
    assert event["layers"] == list(wanted)
    assert event["largest"] == pytest.approx([largest for largest, _ in wanted.values()], rel=1e-4)
    assert event["smallest"] == pytest.approx([smallest for _, smallest in wanted.values()], rel=1e-4)
    assert len(set(event["largest"])) == len(wanted)  # or layers could be taken for one another
    assert event["seconds"] > 0
    assert float(loss.detach()) == bare
    assert gradients and all(
        torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters() if name in gradients
    )
    line = capsys.readouterr().out.splitlines()[-1]  # they stand in the log, too
    for name, value in (("largest", max(event["largest"])), ("smallest", min(event["smallest"]))):
        assert f"{value:.5g} ({event['layers'][event[name].index(value)]})" in line


def test_only_the_last_micro_step_of_a_window_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps between, micro-steps before and evaluation cost nothing: nothing is wrapped then."""
    model, inputs = make("gpt2", "sdpa")
    calls: list[int] = []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return extremes(*arguments)

    monkeypatch.setattr(attention, "extremes", counted)
    listening = Listening(train(model), window=3, max_steps=7)
    per_step = []
    for _ in range(7):
        calls.clear()
        listening.step(inputs, inputs)
        per_step.append(len(calls))
        model.eval()
        listening.compute_loss(model, inputs)
        model.train()
    assert per_step == [0, 0, 2, 0, 0, 2, 2]  # two layers; the last step ends a short window
    assert [event["step"] for _, event in listening.events] == [3, 6, 7]


@pytest.mark.parametrize("chunk", [1, 7, 40, 150, 700, 4000, 1 << 22])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_chunks_of_any_size_give_the_same(chunk: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a row at a time to everything at once, with key heads that several query heads share."""
    torch.manual_seed(chunk)
    query, key = torch.randn(3, 6, 9, 4), torch.randn(3, groups, 11, 4)
    whole = query @ key.repeat_interleave(6 // groups, 1).mT
    monkeypatch.setattr(attention, "CHUNK", chunk)
    biases: list[Any] = [None, torch.randn(1, 6, 9, 11), torch.randn(3, 6, 9, 11), torch.randn(1, 1, 1, 11)]
    for bias in biases:
        logits = whole * 0.3 + (0 if bias is None else bias)
        largest, negated = extremes(query, key, 0.3, bias).tolist()
        assert (largest, -negated) == pytest.approx((float(logits.max()), float(logits.min())), rel=1e-5)
    assert extremes(query, key, None, None)[0] == pytest.approx(float(whole.max()) / 2, rel=1e-5)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product is larger than a chunk, unless a single row of the logits is."""
    sizes: list[int] = []
    multiply: Callable[..., Any] = torch.matmul

    def watched(*arguments: Any) -> Any:
        made = multiply(*arguments)
        sizes.append(made.numel())
        return made

    monkeypatch.setattr(attention, "CHUNK", 1000)
    monkeypatch.setattr(attention.torch, "matmul", watched)
    extremes(torch.randn(2, 4, 50, 8), torch.randn(2, 4, 50, 8), None, None)
    assert max(sizes) <= 1000 and sum(sizes) == 2 * 4 * 50 * 50


def test_half_precision_is_measured_in_fp32() -> None:
    """Under autocast as well; fp16 would overflow at 65504."""
    query = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert extremes(query, query, 1.0, None).tolist() == [230400.0, -230400.0]


def test_a_model_that_cannot_be_seen_says_so_once() -> None:
    """A model with attention of its own gets a note, and no figures."""

    class Own(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(8, 2)
            self.config = SimpleNamespace(is_encoder_decoder=False)

        def forward(self, states: Any) -> Any:
            return SimpleNamespace(loss=self.attention(states, states, states)[0].sum())

    listening = Listening(Own().train(), window=1)
    for _ in range(3):
        listening.step({"states": torch.randn(4, 2, 8)})
    ((kind, content),) = listening.events
    assert kind == "Noted" and "saw no layer" in content["text"]


def test_what_is_not_finite_is_none() -> None:
    model, inputs = make("opt", "sdpa")
    with torch.no_grad():
        model.model.decoder.layers[1].self_attn.q_proj.weight.fill_(float("nan"))
    listening = Listening(train(model), window=1)
    listening.step(inputs)
    ((_, event),) = listening.events
    assert event["largest"][0] is not None and event["largest"][1] is None and event["smallest"][1] is None


@pytest.mark.parametrize(
    ("modules", "two_stacks", "names"),
    [
        (["transformer.h.0.attn", "transformer.h.11.attn"], False, ["layer0", "layer11"]),
        (["base_model.model.model.decoder.layers.3.self_attn"], False, ["layer3"]),
        (["model.decoder.layers.0.self_attn", "model.decoder.layers.0.encoder_attn"], True,
         ["decoder.layer0", "decoder.layer0.cross"]),
        (["text.layers.0.self_attn", "vision.layers.0.self_attn"], False,
         ["text.layers.0.self_attn", "vision.layers.0.self_attn"]),
        (["attention"], False, ["attention"]),
    ],
)  # fmt: skip
def test_the_names_of_layers(modules: list[str], two_stacks: bool, names: list[str]) -> None:
    assert layer_names(modules, two_stacks=two_stacks) == names


# --- which attention a recipe asks for ---------------------------------------------------------------------


def asked(family: str, **model: Any) -> Any:
    """A recipe for a small model of a family."""
    workload = {"t5": "text2sql", "vit": "image-classification"}.get(family, "causal-lm")
    config = {**FAMILIES[family], "model_type": family}
    return recipe_from({"workload": workload, "model": {"init": "random", "config": config, **model}})


def made_by(recipe: Any) -> Any:
    """The model as ranks make it."""
    context = Context(
        recipe=recipe, batch=Batch(1, 1, 1), precision="fp32", device="cpu", base=Path(), place=Path(),
        shared=True, attempt=1, resume_step=None, engine_config=None, rank=0, local_rank=0, world_size=1,
        emit=Emitter(None, rank=0, attempt=1),
    )  # fmt: skip
    if recipe.workload == "text2sql":
        return seq2seq.make_model(context, Vocabulary(recipe.model.config))
    if recipe.workload == "image-classification":
        return image_classification.make_model(context, ["a", "b"])
    return causal_lm.make_model(context, causal_lm.make_config(recipe, None), None)


@pytest.mark.parametrize("family", ["gpt2", "t5", "vit"])
@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_a_recipe_names_the_attention(family: str, name: str) -> None:
    model = made_by(asked(family, attention=name))
    assert {each.config._attn_implementation for each in model.modules() if hasattr(each, "config")} == {name}


def test_the_attention_is_a_field_of_the_configuration() -> None:
    """So a plan's trace, a changed shape and a frozen recipe have it too; auto leaves what stands there."""
    plain = {**FAMILIES["gpt2"], "model_type": "gpt2"}
    own = {**plain, "attn_implementation": "eager"}
    flash = asked("gpt2", attention="flash").model.config
    assert flash == {**plain, "attn_implementation": "flash_attention_2"}
    assert recipe_from(asked("gpt2", attention="eager").as_dict()).model.config == own
    assert asked("gpt2", config=own).model.config == own
    assert asked("gpt2", config=own, attention="sdpa").model.config["attn_implementation"] == "sdpa"
    only = recipe_from({"workload": "causal-lm", "model": {"name": "gpt2", "attention": "sdpa"}})
    assert only.model.config == {"attn_implementation": "sdpa"}
    for wrong in ("fast", ["sdpa"], 1):
        with pytest.raises(ValidationError, match=r"model\.attention"):
            asked("gpt2", attention=wrong)
    # A trace of it needs no package.
    assert tasks.make(TraceRequest("causal-lm", flash, tokens=8), {}).config._attn_implementation == UNMASKED


def test_an_attention_that_a_model_does_not_have(tmp_path: Path) -> None:
    """T5 has no flash attention, with the package or without. Another error is not the attention's: a shape
    that makes no model, and a folder that is none."""
    transformers.T5ForConditionalGeneration(transformers.T5Config(**FAMILIES["t5"])).save_pretrained(tmp_path)
    saved = {"workload": "text2sql", "model": {"name": str(tmp_path), "attention": "flash"}}
    for recipe in (asked("t5", attention="flash"), recipe_from(saved)):
        with pytest.raises(RecipeError, match="cannot be used") as caught:
            made_by(recipe)
        assert caught.value.where == "model.attention"
        assert "model.attention=sdpa" in (caught.value.hint or "")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match="cannot be loaded") as caught:
        made_by(recipe_from(saved))
    assert caught.value.where == "model.name"
    odd = {**FAMILIES["gpt2"], "n_embd": 33, "model_type": "gpt2"}
    with pytest.raises(ValueError, match="divisible"):
        made_by(asked("gpt2", config=odd, attention="sdpa"))
