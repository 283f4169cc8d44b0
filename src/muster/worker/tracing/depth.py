"""Few layers stand for many that are alike: every figure is a constant and a multiple of the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.families import family_of, gpt2, llama, opt, t5, vit
from muster.core.trace import FIGURES, Pass, line, with_peaks

FEW, MORE = 3, 4  # layers of a stack that are traced in place of all: a first, a last, and others
Group = tuple[int, bool]  # samples, and whether the loss works through their logits in parts
_ONE = ("num_hidden_layers",)
_KEYS = {t5: ("num_layers", "num_decoder_layers"), gpt2: ("n_layer",), opt: _ONE, llama: _ONE, vit: _ONE}


@dataclass(frozen=True)
class Depth:
    """A stack's layers by their key in the configuration: {key: layers}. Empty: not known."""

    whole: Mapping[str, int]

    @property
    def deep(self) -> tuple[str, ...]:
        """Stacks that are worth tracing in part."""
        return tuple(key for key, layers in self.whole.items() if layers > MORE)


def depth_of(config: Mapping[str, Any], made: Mapping[str, Any]) -> Depth:
    """The depth of a configuration's stacks; `made`: the model's own, defaults included.

    Not known for other families, nor where the configuration says something of every layer.
    """
    family = family_of(config)
    keys = _KEYS.get(family, ()) if family else ()
    whole = {key: int(made.get(key) or made.get("num_layers") or 0) for key in keys}
    lists = [len(value) for value in config.values() if isinstance(value, list)]
    if any(layers in lists or layers < 1 for layers in whole.values()):
        return Depth({})
    return Depth(whole)


def extrapolated(
    depth: Depth,
    traced: Callable[[Mapping[str, int], Sequence[Group]], Sequence[Pass]],
    groups: Sequence[Group],
    beyond: Sequence[Group],
) -> list[Pass]:
    """The passes of the whole depth, over `groups` and `beyond`. `traced`: the passes of a model with so many
    layers per stack.

    Stacks of equal depth become deeper together: one more model is traced, else one for each. Deeper models
    run `groups` alone, whose last two make a line: how much more or less it takes where the loss works in
    parts (`beyond`) does not depend on the depth.
    """
    deep = depth.deep
    if not deep:
        return list(traced(depth.whole, [*groups, *beyond]))
    few = {**depth.whole, **dict.fromkeys(deep, FEW)}
    together = len({depth.whole[key] for key in deep}) == 1
    stacks = [deep] if together else [(key,) for key in deep]
    base = traced(few, [*groups, *beyond])
    deeper = [traced({**few, **dict.fromkeys(stack, MORE)}, groups) for stack in stacks]
    shares = [(depth.whole[stack[0]] - FEW) / (MORE - FEW) for stack in stacks]
    found = [
        _combined(
            base[index],
            [(passes[index], base[index], share) for passes, share in zip(deeper, shares, strict=True)],
        )
        for index in range(len(groups))
    ]
    small, large = len(groups) - 2, len(groups) - 1
    for other in base[len(groups) :]:
        few_layers = line(base[small], base[large], other.samples)
        all_layers = line(found[small], found[large], other.samples)
        found.append(_combined(other, [(all_layers, few_layers, 1.0)]))
    return found


def _combined(start: Pass, steps: Sequence[tuple[Pass, Pass, float]]) -> Pass:
    """start + the sum of share x (high - low) over (high, low, share), figure by figure and part by part."""

    def added(value: int, pairs: list[tuple[int, int]]) -> int:
        more = (each[2] * (high - low) for each, (high, low) in zip(steps, pairs, strict=True))
        return max(0, round(value + sum(more)))

    figures = {
        name: added(
            getattr(start, name), [(getattr(high, name), getattr(low, name)) for high, low, _ in steps]
        )
        for name in FIGURES
    }
    peaks = {}
    for part, pair in start.peaks.items():
        plain, growing = (
            added(pair[i], [(high.peaks[part][i], low.peaks[part][i]) for high, low, _ in steps])
            for i in (0, 1)
        )
        peaks[part] = (plain, growing)
    return with_peaks(start.samples, figures, peaks)
