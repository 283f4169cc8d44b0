"""Keeps account of every storage that comes and goes while a model runs, and of what its operations do.

It sees operations below autograd, with real tensors as well as with fake ones. A storage counts once, however
many views it has, from the operation that made it until nothing holds it any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from muster.core.trace import THIN

aten = torch.ops.aten
_CASTS = {aten._to_copy, torch.ops.prims.convert_element_type}
_NOT_WRITTEN = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}


def _attention_flops(query: Any, key: Any, *rest: Any, value: Any = None) -> int:
    """Count two products of all queries with all keys, whatever is masked."""
    batch, heads, queries, width = query.shape
    keys, out = key.shape[-2], (rest[0] if rest else value).shape[-1]
    return int(2 * batch * heads * queries * keys * (width + out))


# Fused attention: PyTorch has no formula for the CPU's, and counts what backward kernels compute again.
_FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
ATTENTION: dict[Any, Callable[..., int]] = {}
for _name in _FUSED:
    if hasattr(aten, f"_scaled_dot_product_{_name}"):
        ATTENTION[getattr(aten, f"_scaled_dot_product_{_name}")] = lambda *args, **_: _attention_flops(
            *args[:3]
        )
        ATTENTION[getattr(aten, f"_scaled_dot_product_{_name}_backward")] = lambda *args, **_: (
            2 * _attention_flops(*args[1:4])
        )


def _causal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a fused attention was asked to mask what comes later."""
    places = {each.name: index for index, each in enumerate(func._schema.arguments)}
    place = places.get("is_causal")
    if place is None:
        return False
    return bool(args[place] if place < len(args) else kwargs.get("is_causal", False))


def _is_thin(given: Sequence[torch.Tensor], rows: Collection[int]) -> bool:
    """Return whether the product of the last two matrices has a side shorter than THIN; the rows of a batch
    do not count, since they grow with it."""
    matrices = [each for each in given if each.ndim in (2, 3)][-2:]
    if len(matrices) < 2:
        return False
    left, right = matrices
    sides = {int(left.shape[-2]), int(left.shape[-1]), int(right.shape[-1])} - set(rows)
    return min(sides, default=THIN) < THIN


class _Storage:
    """An allocation."""

    __slots__ = ("eager", "size", "weight", "wide")

    def __init__(self, size: int, weight: bool, wide: bool, eager: bool) -> None:
        self.eager = eager  # made outside compiled graphs
        self.size = size
        self.weight = weight  # a parameter in another type
        self.wide = wide  # logits, or something of their shape


class Ledger(TorchDispatchMode):  # type: ignore[misc]
    """The account. `outside`: tensors that are there anyway; `classes`: the last dimension of logits; `rows`:
    of the batch, as products of its matrices see them.

    `answer`: to a model that asks yes or no of masks or positions without data; where numbers are compared
    (is a layer to be left out by chance?), the answer is no. None: the truth.
    """

    def __init__(
        self,
        weights: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        *,
        classes: int,
        rows: Collection[int] = (),
        answer: bool | None = None,
    ) -> None:
        super().__init__()
        self.supports_higher_order_operators = True  # as of dropout that is computed again
        self.rows = rows
        self.weights = {each.untyped_storage()._cdata for each in weights}
        self.outside = self.weights | {each.untyped_storage()._cdata for each in others}
        self.classes = classes
        self.answer = answer
        self.returning = False  # the backward pass has begun
        # Of a compiled graph's operation, whose kernels say themselves what they move: its result never
        # leaves its kernel. None: of no graph.
        self.inside: bool | None = None
        self.instead_of: Sequence[torch.Tensor] = ()  # in whose memory its result may be written
        self.flops = self.again = self.attention = self.masked = self.thin = 0
        self.repeated: bool | None = None  # of a compiled graph's operation: it runs a second time
        self.moved = self.thin_moved = self.operations = 0
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}  # by the storage's address
        self._compared: set[int] = set()  # addresses of comparisons of numbers
        self._heirs: dict[int, weakref.ref[Any]] = {}  # by the address whose memory they take over
        self._storages: list[_Storage] = []
        self._events: list[tuple[int, int]] = []  # (storage, +1 made or -1 gone)
        self._marks: list[tuple[int, str]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled functions run as such inside, which PyTorch otherwise prevents."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note it."""
        kwargs = kwargs or {}
        asked = self.answer is not None and func is aten._local_scalar_dense.default
        if asked and args[0].dtype is torch.bool:
            return self.answer and args[0].untyped_storage()._cdata not in self._compared
        out = func(*args, **kwargs)
        if func is not torch.ops.prim.device.default:  # asked all the time, and nothing to note
            self._note(func, args, kwargs, out)
        return out

    def mark(self, part: str) -> None:
        """Begin a part of the pass."""
        self._marks.append((len(self._events), part))

    def alive(self) -> set[int]:
        """Return the storages that are there now."""
        return {index for index, _ in self._alive.values()}

    def numbers(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the numbers of the storages of some tensors."""
        alive = (self._alive.get(each.untyped_storage()._cdata) for each in tensors)
        return {each[0] for each in alive if each is not None}

    def bytes(self, which: Iterable[int], *, wide: bool = False) -> int:
        """Count the bytes of some storages; `wide`: of the logits among them."""
        return sum(self._storages[each].size for each in which if self._storages[each].wide or not wide)

    def handed(self, which: Iterable[int]) -> int:
        """Count the bytes of the logits among some storages that were made outside compiled graphs."""
        return self.bytes((each for each in which if self._storages[each].eager), wide=True)

    def copies(self, which: Iterable[int]) -> set[int]:
        """Return those of some storages that are parameters in another type."""
        return {each for each in which if self._storages[each].weight}

    def peaks(self, without: Collection[int]) -> dict[str, int]:
        """Return the most bytes at once in each part of the pass, some storages left out."""
        level, part, marks = 0, "", iter([*self._marks, (len(self._events), "")])
        top: dict[str, int] = {}
        position, following = next(marks)
        for place in range(len(self._events) + 1):
            while place == position:
                part = following or part
                top[part] = max(top.get(part, 0), level)
                position, following = next(marks, (-1, ""))
            if place < len(self._events):
                index, sign = self._events[place]
                level += 0 if index in without else sign * self._storages[index].size
                top[part] = max(top.get(part, 0), level)
        top.pop("", None)
        return top

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        func, args = unwrapped(func, args)
        packet = getattr(func, "_overloadpacket", func)
        given, made = list(_tensors((*args, *kwargs.values()))), list(_tensors((out,)))
        product, thin, done = False, False, 0
        if packet in ATTENTION:
            product, done = True, ATTENTION[packet](*args, **kwargs)
            self.attention += done
            self.masked += done // 2 if _causal(func, args, kwargs) else 0
            self.flops += done
        elif packet in flop_registry:
            product, done = True, int(flop_registry[packet](*args, **kwargs, out_val=out))
            thin = _is_thin(given, self.rows)
            self.thin += done if thin else 0
            self.flops += done
        # Autograd's own operations need no gradients; what is computed again in between does.
        repeated = torch.is_grad_enabled() if self.repeated is None else self.repeated
        self.again += done if self.returning and repeated else 0
        before = {each.untyped_storage()._cdata for each in given}
        weight = packet in _CASTS and args[0].untyped_storage()._cdata in self.weights
        fresh = False
        for each in made:
            storage = each.untyped_storage()
            if each.dtype is torch.bool and any(one.is_floating_point() for one in given):
                self._compared.add(storage._cdata)
            if storage._cdata not in before:
                fresh = True
                counted = self.inside or storage._cdata in self.outside or storage._cdata in self._alive
                if not (counted or self._inherits(storage)):
                    wide = each.is_floating_point() and each.ndim > 1 and each.shape[-1] == self.classes
                    self._hold(storage, _Storage(storage.nbytes(), weight, wide, self.inside is None))
        if self.inside is not None:
            return
        if fresh or func._schema.is_mutable:
            written = sum(map(touched, made)) if packet not in _NOT_WRITTEN else 0
            read = sum(map(touched, given)) if written else 0
            if thin:
                self.thin_moved += written + read
            elif not product:
                self.moved += written + read
            self.operations += bool(written)

    def settle(self) -> None:
        """Count what was to be written over something that is still there after its kernel."""
        for reference in self._heirs.values():
            if (heir := reference()) is not None and heir._cdata not in self._alive:
                self._hold(heir, _Storage(heir.nbytes(), False, False, False))
        self._heirs.clear()

    def _inherits(self, storage: Any) -> bool:
        """Return whether a result is written over something of the same size."""
        for each in self.instead_of:
            address = each.untyped_storage()._cdata
            owner = self._alive.get(address)
            if owner and address not in self._heirs and self._storages[owner[0]].size == storage.nbytes():
                self._heirs[address] = weakref.ref(storage)
                return True
        return False

    def _hold(self, storage: Any, made: _Storage) -> None:
        index = len(self._storages)
        self._storages.append(made)
        self._events.append((index, 1))
        self._own(storage, index)

    def _own(self, storage: Any, index: int) -> None:
        address = storage._cdata
        self._alive[address] = (index, weakref.ref(storage, partial(self._gone, address, index)))

    def _gone(self, address: int, index: int, _: Any) -> None:
        self._alive.pop(address, None)
        self._compared.discard(address)
        heir = self._heirs.pop(address, None)
        if heir is not None and (storage := heir()) is not None:
            self._own(storage, index)
        else:
            self._events.append((index, -1))


def unwrapped(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return an operation and its arguments, also where another one wraps it: attention that is computed
    again has to draw the same numbers (run_and_save_rng_state)."""
    if isinstance(func, HigherOrderOperator):
        for place, each in enumerate(args):
            if isinstance(each, OpOverload):
                return each, args[place + 1 :]
    return func, args


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def touched(tensor: torch.Tensor) -> int:
    """Count the bytes of a tensor's elements; those that an expanded view repeats, once."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))
