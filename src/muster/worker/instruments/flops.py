"""Counts the floating-point operations of what was trained, from the shapes of every micro-batch.

A batch's operations are counted once for each of its lengths by running the model's double (meta.py), until
two lengths are known. From then on the family's formula is used where it says the same, else a polynomial
through counted lengths where that does, else every further length is counted. All of it happens between two
windows, when the clock stands.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from muster.core import families
from muster.core.flops import MatmulWork, Shape, quadratic, training
from muster.store import events
from muster.worker.context import Context
from muster.worker.instruments import meta
from muster.worker.together import gather

Lengths = tuple[int, ...]
SAME = 1e-6  # relative: rotary positions are a product too, which no formula has
PATIENCE = 60.0  # seconds of counting, then it is given up
NO_FLOPS = "the model's FLOPs could not be counted"
FEW = 2  # samples of a batch that is made up for counting


@dataclass(frozen=True)
class BatchKind:
    """What batches have in common: of each tensor its name, type, index of its length (-1: none) and other
    sizes.
    """

    tensors: tuple[tuple[str, torch.dtype, int, tuple[int, ...]], ...]

    def batch(self, samples: int, lengths: Lengths) -> dict[str, torch.Tensor]:
        """Make a batch of meta tensors."""
        return {
            name: torch.empty(
                (samples, lengths[index], *rest) if index >= 0 else (samples, *rest),
                dtype=dtype,
                device="meta",
            )
            for name, dtype, index, rest in self.tensors
        }


@dataclass(frozen=True)
class Signature:
    """A micro-batch's shape."""

    kind: BatchKind
    samples: int
    lengths: Lengths


def signature(inputs: Mapping[str, Any], two_stacks: bool) -> Signature:
    """Describe a micro-batch by its shape. Encoder and decoder have a length of their own; images have none.

    Where tensors of one stack differ in length, all their sizes are taken for fixed ones. Bytes are pixels,
    which a trainer normalises before the model reads them.
    """
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    samples = max((len(value) for value in tensors.values() if value.ndim), default=0)
    lengths: dict[int, int] = {}
    for name, value in tensors.items():
        if value.ndim == 2 and value.shape[1] != lengths.setdefault(_stack(name, two_stacks), value.shape[1]):
            lengths.clear()
            break
    order = sorted(lengths)
    parts = []
    for name in sorted(tensors):
        value = tensors[name]
        sequence = value.ndim == 2 and bool(lengths)
        index = order.index(_stack(name, two_stacks)) if sequence else -1
        dtype = torch.float32 if value.dtype is torch.uint8 else value.dtype
        parts.append((name, dtype, index, () if sequence else tuple(value.shape[1:])))
    return Signature(BatchKind(tuple(parts)), samples, tuple(lengths[stack] for stack in order))


def _stack(name: str, two_stacks: bool) -> int:
    return 1 if two_stacks and (name == "labels" or name.startswith("decoder_")) else 0


class Rule:
    """Operations per sample of one kind of batch by its lengths, counted as seldom as can be."""

    def __init__(
        self, count: Callable[[int, Lengths], int], formula: Callable[[Lengths], int | None] | None
    ) -> None:
        self.count = count
        self.formula = formula
        self.per_sample: dict[Lengths, Fraction] = {}
        self.rule: Callable[[Lengths], Fraction | int | None] | None = None
        self.polynomial: Callable[[Lengths], Fraction] | None = None
        self.through: set[Lengths] = set()  # lengths that the polynomial goes through
        self.searching = True
        self.method = "counted"

    def counted(self, lengths: Lengths) -> bool:
        """Return whether a batch of these lengths is counted, or has a rule."""
        return lengths in self.per_sample or self.rule is not None

    def __call__(self, samples: int, lengths: Lengths) -> int:
        """Return the operations of a batch."""
        return round(samples * self._per_sample(samples, lengths))

    def _per_sample(self, samples: int, lengths: Lengths) -> Fraction:
        if lengths in self.per_sample:
            return self.per_sample[lengths]
        if self.rule is not None:
            return Fraction(self.rule(lengths) or 0)
        self.per_sample[lengths] = Fraction(self.count(samples, lengths), samples)
        if self.searching and len(self.per_sample) > 1:
            self._find_rule()
        return self.per_sample[lengths]

    def _find_rule(self) -> None:
        """Take the formula where it agrees with what was counted, else the polynomial where that does.

        What the polynomial was made of is no proof: it waits for a length that it does not go through.
        """
        if self.formula is not None and self._says_the_same(self.formula):
            self.rule, self.method, self.searching = self.formula, "formula", False
            return
        try:
            self.polynomial = self.polynomial or self._interpolate()
        except (ValueError, RuntimeError, IndexError):  # too short, or shapes that this model refuses
            self.searching = False
            return
        if self.through.issuperset(self.per_sample):
            return
        self.searching = False
        if self._says_the_same(self.polynomial):
            self.rule, self.method = self.polynomial, "polynomial"

    def _interpolate(self) -> Callable[[Lengths], Fraction]:
        def count(lengths: Lengths) -> Fraction:
            self.through.add(lengths)
            return Fraction(self.count(FEW, lengths), FEW)

        return quadratic(count, tuple(max(each) for each in zip(*self.per_sample, strict=True)))

    def _says_the_same(self, rule: Callable[[Lengths], Fraction | int | None]) -> bool:
        return all(
            (operations := rule(lengths)) is not None and abs(operations - value) <= SAME * value
            for lengths, value in self.per_sample.items()
        )


class FlopsCounter:
    """The instrument. `see` every micro-batch, `step` at the end of a step, `close` at that of a window."""

    def __init__(self, context: Context, model: Any) -> None:
        self.emit, self.main = context.emit, context.main
        self.checkpointing = context.recipe.train.checkpointing
        self.in_step: list[Signature] = []
        self.in_window: list[list[Signature]] = []  # of each step
        self.rules: dict[BatchKind, tuple[Rule, Rule | None]] = {}
        self.seconds = 0.0
        self.runs = 0
        self.met = False  # whether the ranks have exchanged which lengths there are
        self.trouble: str | None = None
        self.double: Any = None
        self.config: dict[str, Any] = {}
        try:
            self._prepare(model)
        except Exception as error:  # a model of a kind that is not known may refuse anything
            self._give_up(error)

    def _prepare(self, model: Any) -> None:
        began = time.perf_counter()
        self.double = meta.double(model)
        config: Any = getattr(model, "config", None)
        self.config = config.to_dict() if hasattr(config, "to_dict") else {}
        self.config.setdefault("num_labels", getattr(config, "num_labels", None))
        # The families' formulas are of models that predict tokens; a classifier has a layer `score` instead.
        self.plain = all(each.requires_grad for each in model.parameters()) and not hasattr(model, "score")
        self.two_stacks = bool(getattr(config, "is_encoder_decoder", False))
        self.seconds += time.perf_counter() - began

    def see(self, inputs: Mapping[str, Any]) -> None:
        """Remember a micro-batch's shape."""
        if self.double is not None:
            self.in_step.append(signature(inputs, self.two_stacks))

    def step(self) -> None:
        """Note that a step is over."""
        self.in_window.append(self.in_step)
        self.in_step = []

    def counted(self) -> bool:
        """Return whether `close` has nothing left to count, nor to ask the other ranks."""
        return self.met and (
            self.double is None
            or all(
                each.kind in self.rules
                and all(rule.counted(each.lengths) for rule in self.rules[each.kind] if rule)
                for step in self.in_window
                for each in step
            )
        )

    def close(self, skipped: Collection[int] = ()) -> dict[str, int | None]:
        """Return the window's operations as fields of its event; None where they could not be counted.

        skipped: numbers of its steps that a loss scaler threw away; they were not used.
        """
        used = (step for number, step in enumerate(self.in_window) if number not in skipped)
        seen = Counter(itertools.chain.from_iterable(used))
        self.in_window = []
        first, self.met = not self.met, True
        if first:
            self._meet(seen)
        if self.double is None:
            return {"model_flops": None, "hardware_flops": None}
        try:
            works = [(self._work(each), times) for each, times in seen.items()]
        except Exception as error:
            self._give_up(error)
            self.emit(events.Noted, text=f"{NO_FLOPS} any more: {self.trouble}")
            return {"model_flops": None, "hardware_flops": None}
        return {
            "model_flops": sum(work.model * times for work, times in works),
            "hardware_flops": sum(work.hardware * times for work, times in works),
        }

    def _meet(self, seen: Counter[Signature]) -> None:
        """Count the first window's lengths of all ranks on each rank, so that no rank waits later on."""
        alike = {(each.kind, each.lengths): each for rank in gather(list(seen)) for each in rank}
        order = sorted(alike.values(), key=lambda each: (each.lengths, each.samples))
        shown = order[-1] if order else None
        order = [*order[-1:], *order[:-1]]  # the longest and the shortest first
        try:
            for each in order:
                if self.double is not None:
                    self._work(each)
            if shown is not None and self.double is not None:
                self._emit_count(shown)
        except Exception as error:
            self._give_up(error)
        troubles = [each for each in gather(self.trouble) if each]  # the ranks go on together
        if troubles:
            self.double = None
            if self.main:
                self.emit(events.Noted, text=f"{NO_FLOPS}: {troubles[0]}")

    def _emit_count(self, shown: Signature) -> None:
        work, formula = self._work(shown), self._formula(shown.samples, shown.lengths)
        model, _ = self.rules[shown.kind]
        if self.main:
            self.emit(
                events.FlopsCounted,
                seconds=self.seconds,
                runs=self.runs,
                method=model.method,
                samples=shown.samples,
                lengths=list(shown.lengths),
                model=work.model,
                hardware=work.hardware,
                formula=formula,
            )

    def _work(self, batch: Signature) -> MatmulWork:
        if batch.kind not in self.rules:
            self.rules[batch.kind] = self._make_rules(batch.kind)
        model, hardware = self.rules[batch.kind]
        needed = model(batch.samples, batch.lengths)
        done = hardware(batch.samples, batch.lengths) if hardware else needed
        return MatmulWork(0, needed, done)

    def _make_rules(self, kind: BatchKind) -> tuple[Rule, Rule | None]:
        def plain(samples: int, lengths: Lengths) -> int:
            return self._count(kind.batch(samples, lengths), checkpointing=False)

        def doubled(samples: int, lengths: Lengths) -> int:
            return self._count(kind.batch(samples, lengths), checkpointing=True)

        formula = (lambda lengths: self._formula(1, lengths)) if self.plain else None
        return Rule(plain, formula), Rule(doubled, None) if self.checkpointing else None

    def _count(self, batch: dict[str, torch.Tensor], *, checkpointing: bool) -> int:
        if self.seconds > PATIENCE:
            raise RuntimeError(f"counting took {self.seconds:.0f} s already")
        began = time.perf_counter()
        try:
            return meta.count(self.double, batch, checkpointing=checkpointing).hardware
        finally:
            self.runs += 1
            self.seconds += time.perf_counter() - began

    def _formula(self, samples: int, lengths: Lengths) -> int | None:
        products = families.products(self.config, Shape(samples, *lengths)) if len(lengths) < 3 else None
        return training(products).model if products and self.plain else None

    def _give_up(self, error: Exception) -> None:
        self.double = None
        self.in_step.clear()
        self.trouble = (str(error).strip() or type(error).__name__).splitlines()[0]
