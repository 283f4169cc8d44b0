"""What a run measures: a recipe's held-out evaluation and its instruments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from muster.core.section import PositiveInt, Section


class Evaluate(Section):
    """Held-out loss during training, and the trained model's answers after it."""

    every: PositiveInt | Literal["epoch"] | None = Field(
        None,
        description="Optimizer steps between evaluations of the held-out loss; epoch: at the end of each. "
        "Null: none in between.",
    )
    after: bool = Field(
        True, description="Evaluate the trained model on held-out samples when training ends."
    )
    limit: PositiveInt | None = Field(
        None, description="Evaluate on at most this many held-out samples. Null: all of them."
    )
    batch: PositiveInt = Field(
        64,
        description="Samples per rank and forward pass where answers are drawn or images are classified. The "
        "held-out loss of text has batch.micro.",
    )
    max_new_tokens: PositiveInt | None = Field(
        None, description="Longest generated answer in tokens. Null: the workload's own limit."
    )
    beams: PositiveInt = Field(1, description="Beams of the beam search for answers; 1: greedy decoding.")


class Measure(Section):
    """The instruments."""

    window: PositiveInt = Field(
        10, description="Optimizer steps per measured window: loss and speed are recorded once a window."
    )
    warmup: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First optimizer steps that are left out of the throughput (never more than a third of "
        "the run).",
    )
    hardware_seconds: Annotated[float, Field(gt=0)] = Field(
        5, description="Seconds between two samples of a host's hardware (CPU, memory, GPUs)."
    )
    profile: Literal["none", "flops", "trace"] = Field(
        "none",
        description="Profile steps into the run folder. flops: DeepSpeed's FLOPs by module. trace: a trace "
        "by PyTorch's profiler, and where a step's time goes.",
    )
    profile_step: PositiveInt = Field(
        5, description="The first optimizer step that is profiled. A trace warms up in it."
    )
    profile_steps: PositiveInt = Field(
        10,
        description="Number of optimizer steps after it that a trace sums up. One step more is traced for "
        "the lines of code that wait for the device.",
    )
    profile_ranks: list[Annotated[int, Field(ge=0)]] = Field(
        [0], description="The ranks that are profiled, by number."
    )
    flops: bool = Field(True, description="Count the model's FLOPs, which the MFU needs.")
    peak_tflops: Annotated[float, Field(gt=0)] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None,
        description="Peak TFLOP/s of a device, for the MFU: one number, or {host: number}. Null: measured by "
        "`muster check` (see `peaks`), else the maker's figure.",
    )
    peaks: str | None = Field(
        None,
        description="A file with each host's measured peak: the output of `muster check HOSTS --json`, or "
        "result.json of `muster train fabric`. It overrides the maker's figure; `peak_tflops` overrides it.",
    )
    report_to: list[Literal["mlflow", "tensorboard", "trackio", "wandb"]] = Field(
        default_factory=list,
        description="Trackers that Transformers reports to as well; each must be installed on the hosts.",
    )
    attention: bool = Field(
        False,
        description="Record the largest and smallest scaled attention logit of each layer once a window.",
    )

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        """Accept one name in place of a list, as Transformers does."""
        if isinstance(value, str):
            return [] if value == "none" else [value]
        return value

    @property
    def profiled(self) -> range:
        """The optimizer steps that run under a profiler."""
        count = {"none": 0, "flops": 1, "trace": self.profile_steps + 2}[self.profile]
        return range(self.profile_step, self.profile_step + count)
