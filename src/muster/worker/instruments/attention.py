"""The activation monitor: per layer, the largest and smallest attention logit, once per window.

A logit is q.k times the layer's scale, plus the position bias where the model adds one (T5), in fp32, before
mask and softmax: the full square of queries and keys, padding and, under a causal mask, the future included.
So Mistral logged it (activations/layerN_attention_weight_max and _min).

Kernels such as SDPA's never hold the logits, so they are made beside them. For the last micro-step of a
window, Transformers' AttentionInterface hands out each attention function in a wrapper that first multiplies
queries and keys, chunk by chunk and without gradients. Between those steps nothing is wrapped. The function
sees whole activations, also where parameters are sharded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.modeling_utils import AttentionInterface

from muster.store import events
from muster.worker.context import Context
from muster.worker.instruments.clock import DeviceClock
from muster.worker.together import initialised

CHUNK = 1 << 22  # logits that are held at once, in fp32: 16 MiB


class AttentionMonitor(TrainerCallback):  # type: ignore[misc]
    """Emits an Attention event for every window of `window` optimizer steps."""

    def __init__(self, context: Context, trainer: Any) -> None:
        self.emit, self.main = context.emit, context.main
        self.window = context.recipe.measure.window
        self.device, self.clock = context.device, DeviceClock(context.device)
        self.trainer = trainer
        self.places: dict[int, int] = {}  # a module's id -> its place in the model
        self.names: list[str] = []  # of all modules, by their place
        self.wanted = False  # this optimizer step ends a window
        self.ends: dict[int, torch.Tensor] = {}  # place -> [largest, -smallest], on the device
        self.marks: list[tuple[Any, Any]] = []  # begin and end of each measurement
        self.noted = False

    def around(self, model: Any) -> AbstractContextManager[None]:
        """Watch the forward passes of the loss that is computed inside, where it is a window's last one."""
        last = self.wanted and model.training and self.trainer.accelerator.sync_gradients
        return self.watching() if last else nullcontext()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure every attention function that the interface hands out inside. It has no callback, so its
        method is replaced for that time."""
        handed = AttentionInterface.get_interface

        def get_interface(interface: Any, *arguments: Any, **named: Any) -> Any:
            return self.measured(handed(interface, *arguments, **named))

        AttentionInterface.get_interface = get_interface
        try:
            yield
        finally:
            AttentionInterface.get_interface = handed

    def measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an attention function so that it first notes its logits' extremes."""

        def attention(module: Any, query: Any, key: Any, *rest: Any, **named: Any) -> Any:
            place = self.places.get(id(module))
            if place is not None:
                begin = self.clock.now()
                ends = extremes(query, key, named.get("scaling"), named.get("position_bias"))
                before = self.ends.get(place)
                self.ends[place] = ends if before is None else torch.maximum(before, ends)
                self.marks.append((begin, self.clock.now()))
            return function(module, query, key, *rest, **named)

        return attention

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Assign numbers to the modules: the model is complete now."""
        modules = list(self.trainer.model.named_modules())
        self.names = [name for name, _ in modules]
        self.places = {id(module): place for place, (_, module) in enumerate(modules)}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Decide whether the step that begins is the last one of a window."""
        step = state.global_step + 1
        self.wanted = step % self.window == 0 or step >= state.max_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reduce over all ranks: the largest, the smallest, and the seconds of the slowest."""
        if not self.wanted:
            return
        self.wanted = False
        self.clock.wait()
        # A column per module, so that ranks agree on it whatever each has seen; the last is for the seconds.
        table = torch.full((3, len(self.names) + 1), -math.inf, device=self.device)
        table[0, -1] = sum(self.clock.seconds(*pair) for pair in self.marks)  # of the measurements
        for place, ends in self.ends.items():
            table[:2, place] = ends
            table[2, place] = 1.0
        if initialised():
            torch.distributed.all_reduce(table, op=torch.distributed.ReduceOp.MAX)
        self.ends.clear()
        self.marks.clear()
        if self.main:
            self.report(state.global_step, *table.tolist())

    def report(self, step: int, largest: list[float], negated: list[float], seen: list[float]) -> None:
        """Emit the event; or, once, a note that no attention was seen."""
        places = [place for place in range(len(self.names)) if seen[place] > 0]
        if places:
            two_stacks = bool(getattr(self.trainer.model.config, "is_encoder_decoder", False))
            layers = layer_names([self.names[place] for place in places], two_stacks=two_stacks)
            high, low = max(places, key=largest.__getitem__), max(places, key=negated.__getitem__)
            sys.stdout.write(  # into the host's log, for tools that know no events
                f"step {step}: attention logits from {-negated[low]:.5g} ({layers[places.index(low)]}) to "
                f"{largest[high]:.5g} ({layers[places.index(high)]})\n"
            )
            sys.stdout.flush()
            self.emit(
                events.Attention,
                step=step,
                layers=layers,
                largest=[_number(largest[place]) for place in places],
                smallest=[_number(-negated[place]) for place in places],
                seconds=largest[-1],
            )
        elif not self.noted:
            self.noted = True
            self.emit(
                events.Noted,
                text="measure.attention saw no layer: this model's attention does not go through "
                "Transformers' AttentionInterface",
            )


@torch.no_grad()  # type: ignore[untyped-decorator]
def extremes(
    query: torch.Tensor, key: torch.Tensor, scale: float | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return [largest, -smallest] of query @ key^T * scale + bias, in fp32, holding CHUNK logits at once.

    query: [batch, heads, length, size]; key: [batch, key heads, key length, size], each for heads / key heads
    queries in a row; scale: None for size^-0.5; bias: broadcasts to [batch, heads, length, key length].
    """
    batch, heads, length, size = query.shape
    groups, keys = key.shape[1], key.shape[2]
    share = heads // groups
    query = (
        query.detach().view(batch, groups, share, length, size) if share > 1 else query.detach()[:, :, None]
    )
    if bias is not None:
        bias = bias.detach()[..., :keys].expand(batch, heads, length, keys)
        bias = bias.unflatten(1, (groups, share))
    rows = max(1, min(length, CHUNK // (share * keys)))
    across = max(1, min(groups, CHUNK // (share * keys * rows))) if rows == length else 1
    deep = max(1, min(batch, CHUNK // (share * keys * rows * across))) if across == groups else 1
    scale = size**-0.5 if scale is None else float(scale)
    ends = torch.full((2,), -math.inf, dtype=torch.float32, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        for b in range(0, batch, deep):
            for g in range(0, groups, across):
                few = (slice(b, b + deep), slice(g, g + across))
                against = key.detach()[few].float().transpose(-1, -2)[:, :, None]
                for r in range(0, length, rows):
                    part = (*few, slice(None), slice(r, r + rows))
                    logits = torch.matmul(query[part].float() * scale, against)
                    if bias is not None:
                        logits += bias[part]
                    low, high = torch.aminmax(logits)
                    ends = torch.maximum(ends, torch.stack((high, -low)))
    return ends


def layer_names(modules: Sequence[str], *, two_stacks: bool) -> list[str]:
    """Shorten the names of attention modules: layer0; with two stacks encoder.layer0, decoder.layer0 and
    decoder.layer0.cross. The full names stay where short ones would be alike."""
    short = [_short(name, two_stacks) for name in modules]
    return short if len(set(short)) == len(short) else list(modules)


def _short(name: str, two_stacks: bool) -> str:
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return name
    stack = next((part for part in parts[:number] if part in ("encoder", "decoder")), None)
    crossing = any(word in parts[-1].lower() for word in ("cross", "encdec", "encoder_attn"))
    prefix = f"{stack}." if two_stacks and stack else ""
    return f"{prefix}layer{parts[number]}" + (".cross" if crossing else "")


def _number(value: float) -> float | None:
    """Round to six digits, more than fp32 logits deserve; None for what is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
