"""What dpo and reward share in the ranks: TRL's trainers compare a preferred answer with a rejected one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from muster.dialogues.answer import executed
from muster.dialogues.load import Encoding
from muster.dialogues.tokens import Fitting, PreferenceCollator, count_pairs, pairs
from muster.dialogues.trl import Means, TrlTrainer
from muster.worker.context import Context
from muster.worker.trainer import wired
from muster.worker.workloads.base import Built


class PairTrainer(Means, TrlTrainer):
    """Train on pairs of a preferred and a rejected answer, with exact figures over held-out ones. Rows that
    fill up the last batches have no answer in `completion_mask`, and count for nothing.

    TRL's own losses read a dozen figures from the device in every micro-batch.

    `_figures`: a row of sums per batch: loss, pairs that are ordered rightly, margin, pairs.
    """

    _figures: list[torch.Tensor]

    def preferring(
        self, chosen: torch.Tensor, rejected: torch.Tensor, smoothing: float = 0.0
    ) -> torch.Tensor:
        """Return -log sigmoid(chosen - rejected), the mean over pairs; `smoothing`: the probability that a
        pair is in the wrong order (Mitchell 2023, conservative DPO)."""
        margin = chosen - rejected
        seen = margin.detach()
        self.see("pair_accuracy", (seen > 0).sum(), len(seen))
        self.see("margin", seen.sum(), len(seen))
        loss = (smoothing - 1) * functional.logsigmoid(margin)
        return (loss - smoothing * functional.logsigmoid(-margin) if smoothing else loss).mean()

    def seen(self, inputs: dict[str, Any], chosen: torch.Tensor, rejected: torch.Tensor) -> None:
        """Count a held-out batch with these rewards, (batch) each."""
        real = inputs["completion_mask"].chunk(2)[0].sum(1) > 0
        margin = (chosen - rejected).detach().float()
        columns = [functional.softplus(-margin), margin > 0, margin, real]
        # Not `margin[real]`, whose size the host would wait for.
        self._figures.append(torch.stack([each.double().where(real, 0.0).sum() for each in columns]))

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any
    ) -> tuple[Any, None, None]:
        """Compute a held-out batch, and keep its figures."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs), None, None

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **named: Any) -> Any:
        """Run Transformers' loop; its figures are those of all real pairs."""
        self._figures = []
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        sums = torch.stack(self._figures).sum(0) if self._figures else torch.zeros(4).double()
        sums = self.accelerator.reduce(sums.to(self.accelerator.device), "sum")
        loss, right, margin, count = sums.tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / count
            self._metrics["eval"] = {"pair_accuracy": [right / count], "margin": [margin / count]}
        return output


def build(
    context: Context,
    arguments: dict[str, Any],
    kind: Any,
    make_arguments: Callable[..., Any],
    models: Callable[[Encoding], dict[str, Any]],
    **own: Any,
) -> Built:
    """Build the trainer for the recipe. `kind`: its class; `make_arguments`: TRL's, and `own` what else they
    take; `models`: of the encoding, the model and what else the class takes. Raises DataError
    and RecipeError."""
    encoding = Encoding(context)
    tokenizer, samples = encoding.tokenizer, encoding.samples
    fitting = Fitting(encoding.sequence)
    train, held = (
        pairs(part, encoding.templates, fitting, encoding.errors)
        for part in (samples.train, samples.held_out)
    )
    named = models(encoding)
    trainer = wired(
        kind,
        context,
        named.pop("model"),
        make_arguments(**arguments, disable_dropout=True, **own),
        train=train,
        held_out=held,
        lengths=train.lengths,
        collator=PreferenceCollator(tokenizer.pad_token_id, encoding.fixed, encoding.multiple),
        processing=tokenizer,
        grouped=context.recipe.padding_varies,
        own_loss=True,
        **named,
    )
    return Built(
        trainer,
        count_pairs,
        len(train),
        executed(samples.held_out) if context.recipe.output == "log-probs" else [],  # else it writes nothing
        train.cut,
        encoding.skipped,
        len(held),
        encoding.notes,
        flops=not context.recipe.held_models(),  # theirs are not the trained model's
    )
