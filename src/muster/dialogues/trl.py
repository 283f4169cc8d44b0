"""TRL's trainers as Muster uses them: the data are tokens already, and nothing is sent to anybody."""

from __future__ import annotations

from typing import Any

import datasets
import torch

from muster.worker.trainer import Common

REFERENCE = "ref"  # TRL's name of a copy of the adapters


class ByTrl(Common):
    """Goes before one of TRL's trainers among the base classes."""

    def __init__(
        self, *, train_dataset: Any, eval_dataset: Any, data_collator: Any = None, **more: Any
    ) -> None:
        """TRL looks whether it has a data set of the datasets library, and at its first row. It is given one
        row; what is trained on is put in its place."""
        if data_collator is not None:  # trainers that generate have their own
            more["data_collator"] = data_collator
        first = datasets.Dataset.from_list([dict(train_dataset[0])])
        held = None if eval_dataset is None else first
        super().__init__(train_dataset=first, eval_dataset=held, **more)  # type: ignore[call-arg]
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        if REFERENCE in getattr(self.model, "peft_config", ()):  # type: ignore[attr-defined]
            # A copy of the adapters as they begin. They begin at zero, so the model without them is the same,
            # and TRL takes it where there is no copy.
            self.model.delete_adapter(REFERENCE)  # type: ignore[attr-defined]

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Made of tokens already."""
        return dataset

    def _send_telemetry(self) -> None:
        """TRL 1.16 tells the hub which trainer runs on which device. Muster talks to nobody unasked."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run folder says all of it."""


class HeldOutPairs(ByTrl):
    """Exact figures over held-out pairs. Rows that fill up the last batches have no answer in
    `completion_mask`, and count for nothing.

    `_figures`: a row of sums per batch: loss, pairs that are ordered rightly, margin, pairs.
    """

    _figures: list[torch.Tensor]

    def seen(self, inputs: dict[str, Any], chosen: torch.Tensor, rejected: torch.Tensor) -> None:
        """Count a held-out batch with these rewards, (batch) each."""
        real = inputs["completion_mask"].chunk(2)[0].sum(1) > 0
        margin = (chosen - rejected).detach().float()[real]
        loss = torch.nn.functional.softplus(-margin).sum()
        self._figures.append(torch.stack([loss, (margin > 0).sum(), margin.sum(), real.sum()]).double())

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any
    ) -> tuple[Any, None, None]:
        """A held-out batch, of which the figures are kept."""
        inputs = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
        with torch.no_grad(), self.compute_loss_context_manager():  # type: ignore[attr-defined]
            return self.compute_loss(model, inputs), None, None

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **named: Any) -> Any:
        """Transformers' loop; its figures are those of all real pairs."""
        self._figures = []
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        accelerator: Any = self.accelerator  # type: ignore[attr-defined]
        sums = torch.stack(self._figures).sum(0) if self._figures else torch.zeros(4).double()
        loss, right, margin, count = accelerator.reduce(sums.to(accelerator.device), "sum").tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / count
            self._metrics["eval"] = {"pair_accuracy": [right / count], "margin": [margin / count]}  # type: ignore[attr-defined]
        return output
