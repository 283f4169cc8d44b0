"""What a run finds out: a recipe's held-out evaluation and its instruments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from muster.core.section import PositiveInt, Section


class Evaluate(Section):
    """Held-out loss during training, and what the trained model can do after it."""

    every: PositiveInt | None = Field(None, description="optimizer steps between held-out losses")
    after: bool = Field(True, description="answer held-out questions when training ends")
    limit: PositiveInt | None = Field(None, description="at most so many held-out samples")
    batch: PositiveInt = 64
    max_new_tokens: PositiveInt | None = Field(None, description="default: the workload's")
    beams: PositiveInt = 1


class Measure(Section):
    """The instruments."""

    window: PositiveInt = Field(10, description="optimizer steps per measurement")
    warmup: Annotated[int, Field(ge=0)] = Field(
        10, description="optimizer steps left out of the throughput (no more than a third of the run)"
    )
    hardware_seconds: Annotated[float, Field(gt=0)] = Field(5, description="between two samples of a host")
    profile: Literal["none", "flops", "trace"] = Field(
        "none",
        description="into the run folder. flops: DeepSpeed's breakdown by module; trace: PyTorch's profiler",
    )
    profile_step: PositiveInt = Field(
        5, description="the optimizer step that is profiled, or the first of them"
    )
    profile_steps: PositiveInt = Field(1, description="how many steps a trace covers")
    profile_ranks: list[Annotated[int, Field(ge=0)]] = Field([0], description="ranks that are profiled")
    flops: bool = Field(True, description="count the model's FLOPs, for MFU")
    peak_tflops: Annotated[float, Field(gt=0)] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None,
        description="of a device, as `muster check` measured it, or {host: number}; None: the maker's figure",
    )
    peaks: str | None = Field(
        None,
        description="what `muster check HOSTS --json` printed, or result.json of `muster train fabric`: each "
        "host's measured figure goes before the maker's, and peak_tflops before both",
    )
    attention: bool = Field(
        False, description="largest and smallest scaled attention logit of each layer, once per window"
    )

    @property
    def profiled(self) -> range:
        """The optimizer steps that run under a profiler."""
        count = {"none": 0, "flops": 1, "trace": self.profile_steps}[self.profile]
        return range(self.profile_step, self.profile_step + count)
