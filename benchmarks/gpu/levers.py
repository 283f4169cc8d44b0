"""Which lever brings what to a step: plain training loops that differ in one thing, each a process.

    python -m benchmarks.gpu.levers SHAPE LEVER TOLD [--tiny]    # one of them; TOLD: the file of its figures

Nothing of Muster trains here; its cast of the weights is one of the variants. Each variant starts from the
same weights and sees the same batches, so that losses tell whether it computes the same. The first is a loop
as Transformers' users write it: compiled, bf16 autocast, tf32, fused AdamW, batches copied without waiting.
Most others are that loop without the attention mask that Transformers makes under torch.compile, and one
change more.

A row: milliseconds of a step between two synchronisations, MFU, the allocator's peak, seconds until the first
step was over. Then three steps under torch.profiler: how long the GPU was busy, what was launched and copied,
the kernels that took longest. `torch.compile(mode="reduce-overhead")` is Inductor's CUDA graph trees and
nothing else (torch/_inductor/__init__.py, list_mode_options).

A variant that this PyTorch does not have, or that fails, is a row that says so. What there was no time for
is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs import environment
from benchmarks.gpu.kit import Figures, Machine, Piece

STEPS, WARM, PROFILED = 24, 8, 3
LONGEST = 40  # kernels that are named
LANES = 3  # variants at a time
CAUSAL = "causal_without_mask"


@dataclass(frozen=True)
class Shape:
    """A model and its batch. `fields`: of its configuration."""

    name: str
    kind: str
    fields: dict[str, Any]
    batch: int
    sequence: int
    gigabytes: float  # of the device, at most

    def small(self) -> Shape:
        """For a CPU."""
        return Shape(self.name, self.kind, {**self.fields, **SMALL[self.kind], "vocab_size": 1000}, 2, 32, 1)


@dataclass(frozen=True)
class Lever:
    """A variant of the loop. `options`: of Inductor."""

    name: str
    compiled: bool = True
    mask: bool = False
    mode: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    blocking: bool = False
    loss: str = "model"  # its own; "parts", "fused"
    parts: int = 1
    half: bool = False  # bf16 weights, without autocast
    cast: str = ""  # weights are cast, without autocast: "inside" the pass, or "before" it, all at once
    optimizer: str = "fused"


OPT = {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 2048, "vocab_size": 50272}
SHAPES = (
    Shape(
        "gpt2-124m", "gpt2",
        {"vocab_size": 50304, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, 32, 1024, 22,
    ),
    Shape(
        "opt-350m", "opt",
        {**OPT, "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
         "word_embed_proj_dim": 512, "do_layer_norm_before": False}, 24, 512, 22,
    ),
    Shape(
        "opt-1.3b", "opt",
        {**OPT, "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
         "word_embed_proj_dim": 2048}, 8, 2048, 45,
    ),
)  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2},
    "opt": {"hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "word_embed_proj_dim": 64},
}  # fmt: skip
CHUNKER = {"auto_chunker.enable": True, "auto_chunker.num_chunk": 8}
LEVERS = (
    Lever("as Transformers compiles it", mask=True),
    Lever("no mask, weights cast in the graph, CUDA graphs", cast="inside", mode="reduce-overhead"),
    Lever("no mask, weights cast before it", cast="before"),
    Lever("no mask, weights cast in the graph, reductions in one order, CUDA graphs", cast="inside",
          options={"triton.cudagraphs": True, "triton.mix_order_reduction": False}),
    Lever("no mask, weights cast in the graph, combo kernels, CUDA graphs", cast="inside",
          options={"triton.cudagraphs": True, "combo_kernels": True}),
    Lever("no mask, bf16 weights", half=True),
    Lever("no mask"),
    Lever("no mask, CUDA graphs", mode="reduce-overhead"),
    Lever("no mask, weights cast in the graph", cast="inside"),
    Lever("no mask, loss in 4 parts", loss="parts", parts=4),
    Lever("no mask, linear_cross_entropy", loss="fused"),
    Lever("no mask, Inductor's auto-chunker", options=CHUNKER),
    Lever("no mask, blocking copies", blocking=True),
    Lever("eager", compiled=False, mask=True),
    Lever("no mask, loss in 8 parts", loss="parts", parts=8),
    Lever("no mask, CUDA graphs without trees", options={"triton.cudagraphs": True,
                                                         "triton.cudagraph_trees": False}),
    Lever("no mask, foreach optimizer", optimizer="foreach"),
)  # fmt: skip


def pieces() -> list[Piece]:
    """One for each shape, with a row for each variant."""
    return [
        Piece(
            "levers", shape.name, 300, _measured(shape), 170, shared=True, gigabytes=LANES * shape.gigabytes,
            parts=("benchmarks/gpu/jobs.py", "src/muster/worker/arithmetic.py"),
        )
        for shape in SHAPES
    ]  # fmt: skip


def _measured(shape: Shape) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        import torch

        began, longest = time.monotonic(), [0.0]

        def tried(lever: Lever) -> Figures:
            start = time.monotonic()
            if start - began + 1.3 * max(longest) > machine.seconds:
                return {"lever": lever.name, "error": "no time"}
            if missing := lacking(lever):
                return {"lever": lever.name, "error": f"this PyTorch has no {missing}"}
            figures = {"lever": lever.name, **apart(shape, lever, machine)}
            longest.append(time.monotonic() - start)
            return figures

        with ThreadPoolExecutor(LANES) as pool:
            rows = list(pool.map(tried, LEVERS))
        use = shape.small() if machine.tiny else shape
        return {"batch": use.batch, "sequence": use.sequence, "torch": torch.__version__, "rows": rows}

    return run


def apart(shape: Shape, lever: Lever, machine: Machine) -> Figures:
    """The figures of a variant, in a process of its own; others may warm up meanwhile."""
    told = Path(f"{LEVERS.index(lever)}.json")
    tiny = ["--tiny"] if machine.tiny else []
    argv = [sys.executable, "-m", "benchmarks.gpu.levers", shape.name, lever.name, str(told), *tiny]
    env = environment(machine.turn(WARM))  # to its end: it is profiled as well
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if done.returncode or not told.exists():
        return {"error": f"exit code {done.returncode}: {(done.stdout + done.stderr)[-400:]}"}
    figures: Figures = json.loads(told.read_text())
    return figures


def main() -> None:
    """Run the variant that is named, and write its figures."""
    import torch
    from benchmarks.gpu.kit import Results, device

    name, wanted, told = sys.argv[1:4]
    tiny = "--tiny" in sys.argv
    machine = Machine("cpu" if tiny else device(), tiny, Path(), Results(Path()))
    if machine.device == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    shape = next(each for each in SHAPES if each.name == name)
    lever = next(each for each in LEVERS if each.name == wanted)
    Path(told).write_text(json.dumps(row(shape.small() if tiny else shape, lever, machine)))


def row(shape: Shape, lever: Lever, machine: Machine) -> Figures:
    """The figures of a variant, or the error that it ends with."""
    try:
        return Loop(shape, lever, machine).figures()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}


def lacking(lever: Lever) -> str | None:
    """What a variant needs of PyTorch and does not find."""
    import torch
    from torch._inductor import config

    if lever.loss == "fused" and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        return "linear_cross_entropy"
    if "auto_chunker.enable" in lever.options and not hasattr(config, "auto_chunker"):
        return "auto_chunker"
    return None


class Loop:
    """A model, its optimizer, and steps."""

    def __init__(self, shape: Shape, lever: Lever, machine: Machine) -> None:
        import torch

        self.shape, self.lever, self.machine = shape, lever, machine
        self.cuda = machine.device == "cuda"
        self.began = time.perf_counter()
        torch.manual_seed(0)
        self.model = model_of(shape, lever, machine.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.1, **{lever.optimizer: True}
        )
        self.loss_of = self.compiled(loss_function(self.model, lever))
        self.batches = torch.Generator().manual_seed(1)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as the variant runs it. The tiny kit has no Inductor, which takes a CPU a minute: of the
        variants that differ in Inductor's options, the first alone is compiled."""
        import torch

        inductor = bool(self.lever.mode or self.lever.options)
        if not self.lever.compiled or (self.machine.tiny and inductor):
            return function
        if self.machine.tiny:
            return torch.compile(function, backend="aot_eager")
        return torch.compile(function, mode=self.lever.mode, options=self.lever.options or None)

    def batch(self) -> Any:
        """Tokens on the device."""
        import torch

        size = (self.shape.batch, self.shape.sequence)
        tokens = torch.randint(self.shape.fields["vocab_size"], size, generator=self.batches)
        if self.cuda:
            tokens = tokens.pin_memory()
        return tokens.to(self.machine.device, non_blocking=not self.lever.blocking)

    def step(self) -> Any:
        """One of the optimizer; -> the loss, not waited for."""
        import torch

        tokens = self.batch()
        autocast = self.cuda and not (self.lever.half or self.lever.cast)
        with torch.autocast(self.machine.device, torch.bfloat16, enabled=autocast), self.weights():
            loss = self.loss_of(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def weights(self) -> AbstractContextManager[None]:
        """What the pass computes with."""
        from torch.nn.utils.stateless import _reparametrize_module

        if self.lever.cast != "before":
            return nullcontext()
        names, weights = zip(*self.model.named_parameters(), strict=True)
        made = dict(zip(names, cast_at_once()(*weights), strict=True))
        return _reparametrize_module(self.model, made, tie_weights=True)

    def wait(self) -> float:
        """The clock once the device has done everything."""
        import torch

        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def figures(self) -> Figures:
        """Of the steps after the warm-up."""
        import torch

        steps, warm = (4, 2) if self.machine.tiny else (STEPS, WARM)
        self.step()
        first = self.wait() - self.began
        for _ in range(warm - 1):
            self.step()
        start = self.wait()
        for _ in range(steps):
            loss = self.step()
        seconds = (self.wait() - start) / steps
        rate = operations(self.model, self.shape) / seconds
        peak = peak_of(self.cuda)
        return {
            "milliseconds": 1e3 * seconds,
            "samples_per_second": self.shape.batch / seconds,
            "mfu": rate / peak if peak else None,
            "first_step_seconds": first,
            "loss": float(loss.detach()),
            "allocator_peak": torch.cuda.max_memory_allocated() if self.cuda else None,
            **(self.profiled() if self.cuda else {}),
        }

    def profiled(self) -> Figures:
        """What the GPU does in a step."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                self.step()
            self.wait()
        device = torch.autograd.DeviceType.CUDA
        events = [
            (each.name, each.time_range.start, each.time_range.end)
            for each in profiler.events()
            if each.device_type == device and not each.is_user_annotation  # they span what they name
        ]
        return of_device(events, PROFILED)


def of_device(events: Sequence[tuple[str, float, float]], steps: int) -> Figures:
    """Per step, of what ran on a device, with begin and end in microseconds: milliseconds in which anything
    ran, kernels, milliseconds of copies and of the longest kernels."""
    each: Counter[str] = Counter()
    for name, start, end in events:
        each[name] += end - start  # type: ignore[assignment]
    copies = sum(spent for name, spent in each.items() if name.startswith("Memcpy"))
    kernels = [name for name, *_ in events if not name.startswith(("Memcpy", "Memset"))]
    share = 1e-3 / steps
    return {
        "busy_milliseconds": share * covered((start, end) for _, start, end in events),
        "kernels": len(kernels) / steps,
        "copy_milliseconds": share * copies,
        "longest": [[name[:100], share * spent] for name, spent in each.most_common(LONGEST)],
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what spans cover together."""
    total, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


def model_of(shape: Shape, lever: Lever, device: str) -> Any:
    """With random weights, in training."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionMaskInterface.register(CAUSAL, lambda *_, **__: None)
    AttentionInterface.register(CAUSAL, sdpa_attention_forward)
    config = AutoConfig.for_model(shape.kind, **shape.fields, use_cache=False)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=torch.bfloat16 if lever.half else torch.float32,
            attn_implementation="sdpa" if lever.mask else CAUSAL,
        )
    if lever.cast == "inside":
        from muster.worker.arithmetic import cast_weights

        cast_weights(model)
    return model.train()


@cache
def cast_at_once() -> Callable[..., tuple[Any, ...]]:
    """Return a function that casts fp32 weights to bf16 by few kernels; their gradients come back in fp32."""
    import torch

    def cast(tensors: Sequence[Any], dtype: Any) -> tuple[Any, ...]:
        made = [torch.empty_like(each, dtype=dtype) for each in tensors]
        torch._foreach_copy_(made, list(tensors))
        return tuple(made)

    class Cast(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *weights: Any) -> tuple[Any, ...]:
            return cast(weights, torch.bfloat16)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            return cast(gradients, torch.float32)

    return Cast.apply  # type: ignore[no-any-return]


def loss_function(model: Any, lever: Lever) -> Callable[[Any], Any]:
    """The mean loss of the next tokens: as the model has it, the output layer in parts of the rows whose
    logits are computed again in the backward pass, or PyTorch's layer and loss in one."""
    import torch
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    head, body = model.get_output_embeddings(), model.base_model

    def own(tokens: Any) -> Any:
        return model(input_ids=tokens, labels=tokens).loss

    def states(tokens: Any) -> tuple[Any, Any]:
        rows = body(tokens)[0][:, :-1].flatten(0, 1)
        return rows, tokens[:, 1:].flatten()

    def part(rows: Any, labels: Any) -> Any:
        return functional.cross_entropy(head(rows).float(), labels, reduction="sum")

    def in_parts(tokens: Any) -> Any:
        rows, labels = states(tokens)
        pairs = zip(rows.chunk(lever.parts), labels.chunk(lever.parts), strict=True)
        return sum(checkpoint(part, *pair, use_reentrant=False) for pair in pairs) / len(labels)

    def fused(tokens: Any) -> Any:
        rows, labels = states(tokens)
        device = rows.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
        options = torch.nn.LinearCrossEntropyOptions()
        return functional.linear_cross_entropy(rows.to(kind), head.weight.to(kind), labels, options=options)

    return {"model": own, "parts": in_parts, "fused": fused}[lever.loss]


def operations(model: Any, shape: Shape) -> float:
    """Of a step, forward and backward: six for each weight of a product and token, and the attention's, of
    which causality needs half (PaLM, appendix B: 12 x layers x width x sequence for each token)."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    products = [each for each in model.modules() if isinstance(each, nn.Linear | Conv1D)]
    weights = sum(each.weight.numel() for each in products)
    config, tokens = model.config, shape.batch * shape.sequence
    attention = 6 * config.num_hidden_layers * config.hidden_size * shape.sequence
    return float(tokens * (6 * weights + attention))


def peak_of(cuda: bool) -> float | None:
    """The maker's peak in bf16 of the device, in operations per second; None: not in the table."""
    import torch

    from muster.core.hardware.devices import driver_device

    device = driver_device(torch.cuda.get_device_name()) if cuda else None
    return device.peaks.get("bf16") if device else None


if __name__ == "__main__":
    main()
