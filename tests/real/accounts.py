"""Bytes under the tensors of a process, by what they are for, and the most of them at once."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def local(tensor: Any) -> torch.Tensor:
    """This rank's part."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of what lies under tensors, each counted once. Bound gradients too are tensors."""
    found = {}
    for each in tensors:
        if each is not None:
            storage = local(each).untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
    return found


def every_tensor() -> Iterator[torch.Tensor]:
    """All that Python can reach, with their gradients."""
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and each.device.type == "cpu" and type(each).__name__ != "DTensor":
            yield each
            if each.is_leaf and each.grad is not None:
                yield local(each.grad)


class Peak(TorchDispatchMode):
    """The most bytes alive at once while it is on, with those that were there before. `resized`: storages
    change their size, as FSDP's do, and are looked at again after each operation."""

    def __init__(self, *, resized: bool = False) -> None:
        super().__init__()
        self.resized = resized
        self.now = self.most = 0
        self.known: dict[int, tuple[int, weakref.ref[Any]]] = {}
        for each in every_tensor():
            self.note(each)

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or not (size or self.resized):
            return
        self.known[key] = size, weakref.ref(storage, lambda _: self.gone(key))
        self.now += size
        self.most = max(self.most, self.now)

    def gone(self, key: int) -> None:
        size, _ = self.known.pop(key)
        self.now -= size

    def again(self) -> None:
        for key, (size, found) in list(self.known.items()):
            storage = found()
            if storage is not None and storage.nbytes() != size:
                self.known[key] = storage.nbytes(), found
                self.now += storage.nbytes() - size
        self.most = max(self.most, self.now)

    def restart(self) -> int:
        """The most so far; from now on it is counted anew."""
        most, self.most = self.most, self.now
        return most

    def settle(self) -> None:
        """Wait for what goes later: garbage, and what a thread of gloo has reduced and may hold still."""
        gc.collect()
        for _ in range(50):
            before = self.now
            time.sleep(0.1)
            if self.now == before:
                break

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self.note(local(each))
        if self.resized:
            self.again()
        return result


def kinds(trainer: Any) -> dict[str, int]:
    """Bytes of the tensors that an engine holds, by what they are for."""
    model = trainer.model
    parameters = list(model.parameters())
    shards = [each.ds_tensor for each in parameters if hasattr(each, "ds_tensor")]
    found: dict[str, dict[int, int]] = {"parameters": storages(shards or parameters)}
    if shards:
        found["persistent parameters"] = storages(parameters)
        for address in found["parameters"]:  # on one rank they are the shards
            found["persistent parameters"].pop(address, None)
    found["gradients"] = storages(each.grad for each in parameters)
    inner: Any = trainer.optimizer
    engine = getattr(trainer, "deepspeed", None)
    if engine is not None:
        wrapper = engine.optimizer
        inner = engine.basic_optimizer
        lists = getattr(wrapper, "averaged_gradients", {}).values()
        flat = [getattr(wrapper, "grad_partitions_flat_buffer", None)]
        found["gradients"] |= storages([each for one in lists for each in one or []] + flat)
        names = (
            "single_partition_of_fp32_groups",
            "fp32_partitioned_groups_flat",
            "fp32_groups_flat_partition",
        )
        master = [each for name in names for each in getattr(wrapper, name, [])]
        master += [each for group in getattr(wrapper, "fp32_groups", []) for each in group]
        found["fp32 master"] = storages(master)
        found["fp32 gradients"] = storages(each.grad for each in master)
        buckets = getattr(wrapper, "ipg_buckets", {}).values()
        held = [each.buffer if isinstance(each.buffer, list) else [each.buffer] for each in buckets]
        found["buckets"] = storages(each for one in held for each in one)
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    values = [value for state in inner.state.values() for value in state.values()]
    found["optimizer"] = storages(value for value in values if isinstance(value, torch.Tensor))
    sums = {name: sum(each.values()) for name, each in found.items()}
    reducer = getattr(getattr(trainer, "model_wrapped", None), "reducer", None)
    if reducer is not None:
        sums["buckets"] = sum(each.buffer().nbytes for each in reducer._get_zeros_like_grad_buckets())
    sums["all"] = sum(storages(every_tensor()).values())
    return sums
