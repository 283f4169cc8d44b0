"""TensorBoard files on the control side, written from the events."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from muster.store import events


def _summary_writer(folder: Path) -> Any:
    """A writer without torch: tensorboardX imports it wherever it is installed, which costs seconds, and does
    not need it. So while it is imported, there is none."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hidden:
            del sys.modules["torch"]
    return SummaryWriter(logdir=str(folder), flush_secs=5)


class Board:
    """One writer for the whole run."""

    def __init__(self, folder: Path) -> None:
        self.writer = _summary_writer(folder)

    def add(self, event: events.Event) -> None:
        """Events with a step become scalars; hardware samples go by their time."""
        if isinstance(event, events.Log):
            for name, value in (
                ("train/loss", event.loss),
                ("train/learning_rate", event.learning_rate),
                ("train/gradient_norm", event.gradient_norm),
            ):
                if value is not None:
                    self.writer.add_scalar(name, value, event.step, event.time)
        elif isinstance(event, events.Evaluated):
            self.writer.add_scalar("held_out/loss", event.loss, event.step, event.time)
            if event.perplexity is not None:
                self.writer.add_scalar("held_out/perplexity", event.perplexity, event.step, event.time)
        elif isinstance(event, events.Attention):
            self._attention(event)
        elif isinstance(event, events.Window) and event.seconds > 0:
            rank = f"rank{event.rank}"
            self.writer.add_scalar(
                f"samples_per_second/{rank}", event.samples / event.seconds, event.step, event.time
            )
            self.writer.add_scalar(
                f"tokens_per_second/{rank}", event.tokens / event.seconds, event.step, event.time
            )
        elif isinstance(event, events.Hardware):
            second = int(event.time)
            if event.cpu_percent is not None:
                self.writer.add_scalar(f"cpu_percent/{event.host}", event.cpu_percent, second, event.time)
            if event.memory_used is not None:
                self.writer.add_scalar(f"memory_used/{event.host}", event.memory_used, second, event.time)

    def _attention(self, event: events.Attention) -> None:
        """Under Mistral's names: activations/layer0_attention_weight_max."""
        for end, values in (("max", event.largest), ("min", event.smallest)):
            for layer, value in zip(event.layers, values, strict=False):
                if value is not None:
                    name = f"activations/{layer.replace('.', '_')}_attention_weight_{end}"
                    self.writer.add_scalar(name, value, event.step, event.time)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
