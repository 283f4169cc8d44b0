"""Counts where a step makes the host wait for the device, on a CPU that has no device to wait for."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.dataloader import _BaseDataLoaderIter

aten = torch.ops.aten
# A number for Python, or a result whose size is in the data.
READ = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
}
# On a CPU these are views, which no mode sees.
COPIED = ("cpu", "tolist", "numpy")


class Waits(TorchDispatchMode):  # type: ignore[misc]
    """What would wait for a GPU, each as file:line of the innermost frame outside of PyTorch; `apart`: while
    a loader makes a batch, whose tensors are the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.apart = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note it where it waits."""
        packet = func._overloadpacket
        masked = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        # A masked assignment of one number is a masked_fill, which does not wait.
        if packet in READ or (masked and (packet is aten.index or args[2].numel() > 1)):
            self.note(packet.__name__)
        return func(*args, **(kwargs or {}))

    def note(self, what: str) -> None:
        """A wait, here."""
        if not self.apart:
            own = [
                frame
                for frame in traceback.extract_stack()
                if "/torch/" not in frame.filename and frame.filename != __file__
            ]
            file = "/".join(own[-1].filename.split("/")[-3:])
            self.places.append(f"{what} {file}:{own[-1].lineno}")

    @contextmanager
    def watching(self) -> Iterator[Waits]:
        """Inside, waits are noted."""

        def copied(name: str) -> Callable[..., Any]:
            original = getattr(torch.Tensor, name)

            def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                self.note(name)
                return original(tensor, *args, **kwargs)

            return copy

        fetch = _BaseDataLoaderIter.__next__

        def fetched(loader: Any) -> Any:
            self.apart += 1
            try:
                return fetch(loader)
            finally:
                self.apart -= 1

        copies = {name: copied(name) for name in COPIED}
        with (
            mock.patch.object(_BaseDataLoaderIter, "__next__", fetched),
            mock.patch.multiple(torch.Tensor, **copies),
            self,
        ):
            yield self
