"""Direct preference optimization: a decoder learns from pairs of answers, without a reward model."""

from __future__ import annotations

from typing import Any

from trl import DPOConfig, DPOTrainer

from muster.dialogues.answer import Answerer, questions
from muster.dialogues.load import Encoding
from muster.dialogues.pairs import PairTrainer
from muster.dialogues.pairs import build as build_pairs
from muster.worker.context import Context
from muster.worker.decoders import make_model
from muster.worker.workloads.base import Built
from muster.workloads.dpo.spec import DpoRecipe

__all__ = ["Answerer", "build", "questions"]


class _Trainer(PairTrainer, DPOTrainer):  # type: ignore[misc]
    """TRL's, with exact figures over held-out pairs."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **named: Any) -> Any:
        """Compute the loss of a pair's rewards, beta x (log pi - log pi of the reference) (Rafailov et al.
        2023, equation 7); a mixture of experts has TRL's own, which balances them."""
        if self.model.training and self.aux_loss_enabled:
            return super().compute_loss(model, inputs, *args, **named)
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
        given = {name: each for name, each in inputs.items() if name != "completion_mask"}
        outputs = model(**given, labels=labels, use_cache=False, fused_lm_head=True)
        reference = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        chosen, rejected = (
            self.beta * (each - before)
            for each, before in zip(outputs.log_probs.sum(1).chunk(2), reference, strict=True)
        )
        if self.model.training:
            mask = inputs["completion_mask"][:, 1:]
            self.see("entropy", (outputs.entropy.detach() * mask).sum(), mask.sum())
            return self.preferring(chosen, rejected, self.args.label_smoothing)
        self.seen(inputs, chosen, rejected)
        return chosen.new_zeros(())


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe. Raises DataError and RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, DpoRecipe)

    def models(encoding: Encoding) -> dict[str, Any]:
        """Make the trained model and its reference; with adapters that is the model without them."""
        longest = encoding.sequence  # rows are padded at their end
        names = ("model",) if recipe.lora else ("model", "ref_model")
        return {
            name: make_model(context, encoding.config, encoding.tokenizer, longest=longest) for name in names
        }

    return build_pairs(
        context,
        arguments,
        _Trainer,
        DPOConfig,
        models,
        beta=recipe.dpo.beta,
        loss_type=["sigmoid"],
        label_smoothing=recipe.dpo.label_smoothing,
        f_divergence_type="reverse_kl",
        sync_ref_model=False,
        use_weighting=False,
        ld_alpha=None,
    )
