"""TRL's trainers as Muster uses them: the data are tokens already, and nothing is sent to anybody."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import datasets
import torch

from muster.worker.trainer import BeforeTrainer, TrainerBase

REFERENCE = "ref"  # TRL's name of a copy of the adapters


class TrlTrainer(TrainerBase):
    """Goes before one of TRL's trainers among the base classes."""

    def __init__(
        self, *, train_dataset: Any, eval_dataset: Any, data_collator: Any = None, **more: Any
    ) -> None:
        """Give TRL one row as a data set of the datasets library, for which it looks, and put what is trained
        on in its place afterwards."""
        if data_collator is not None:  # trainers that generate have their own
            more["data_collator"] = data_collator
        first = datasets.Dataset.from_list([dict(train_dataset[0])])
        held = None if eval_dataset is None else first
        super().__init__(train_dataset=first, eval_dataset=held, **more)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        if REFERENCE in getattr(self.model, "peft_config", ()):
            # A copy of the adapters as they begin. They begin at zero, so the model without them is the same,
            # and TRL takes it where there is no copy.
            self.model.delete_adapter(REFERENCE)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Return the data set: it is made of tokens already."""
        return dataset

    def _send_telemetry(self) -> None:
        """Send nothing. TRL 1.16 reports to the hub which trainer runs on which device."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write nothing: the run folder has it all."""


class Means(BeforeTrainer):  # type: ignore[misc]
    """Goes before a Transformers trainer among the base classes: means of figures over all ranks since the
    last log, whose sums stay on the device until then."""

    @cached_property
    def _sums(self) -> dict[str, torch.Tensor]:
        """Of each figure its sum, and of how many."""
        return {}

    def see(self, name: str, total: torch.Tensor | float, count: torch.Tensor | float) -> None:
        """Add a part of a figure. Numbers are written by the device: a copy of them would be waited for."""
        device = self.accelerator.device
        both = [
            each.double()
            if isinstance(each, torch.Tensor)
            else torch.full((), each, dtype=torch.double, device=device)
            for each in (total, count)
        ]
        self._sums[name] = self._sums.get(name, 0) + torch.stack(both)

    def log(self, logs: dict[str, float], *rest: Any) -> None:
        """Log the figures' means since the last log of training as well."""
        if "loss" in logs and self._sums:
            sums = self.accelerator.reduce(torch.stack(list(self._sums.values())), "sum").tolist()
            logs |= {name: total / count for name, (total, count) in zip(self._sums, sums, strict=True)}
            self._sums.clear()
        super().log(logs, *rest)
