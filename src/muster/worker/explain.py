"""An error of a library as what a user can act on."""

from __future__ import annotations

from muster.core.errors import JobError, MusterError, RecipeError, WorkerError


def explain(error: Exception) -> MusterError:
    """An error of a library as what a user can act on."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if "out of memory" in text.lower():
        return JobError(
            f"out of memory: {first}",
            hint="halve batch.micro and double batch.accumulation; then train.gradient_checkpointing=true, "
            "a higher engine.zero",
        )
    if "DeepSpeed config values that mismatch" in first:  # "- ds KEY=VALUE vs hf NAME=VALUE" lines follow
        found = [line[len("- ds ") :] for line in text.splitlines() if line.startswith("- ds ")]
        return RecipeError(
            "; ".join(found).replace(" vs hf ", ", but here "),
            where="engine.config",
            hint='"auto" in that file, or the same number in the recipe',
        )
    if isinstance(error, OSError) and error.errno == 28:
        return JobError(
            f"the disk is full: {first}", hint="lower checkpoint.keep, or choose another --output"
        )
    return WorkerError(f"{type(error).__name__}: {first}")
