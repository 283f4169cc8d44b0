"""How a model is spread over ranks: what its memory, its traffic and its steps follow from. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from muster.core.trace import Parameter

Tensors = tuple[Parameter, ...]

# Transformers' Trainer.get_decay_parameter_names: these, and LayerNorms, have no weight decay and make an
# optimizer group of their own. Vectors are taken for norms and biases.
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclass(frozen=True)
class NvmeOffload:
    """What ZeRO 3 offloads to a disk (device: nvme) in place of host memory, in the words of
    `Spread.offload`, and what stays in host memory for it.

    `state_buffers`: each for a sub-group in fp32; `value_buffers`: elements of all buffers of parameters;
    `kept`: elements of parameters that stay in memory (max_in_cpu).
    """

    holds: str = "none"
    state_buffers: int = 4
    value_buffers: int = 500_000_000
    kept: int = 1_000_000_000

    @property
    def optimizer(self) -> bool:
        """Whether the optimizer's states lie there."""
        return "optimizer" in self.holds

    @property
    def parameters(self) -> bool:
        """Whether parameters lie there."""
        return "param" in self.holds


NO_DISK = NvmeOffload()


@dataclass(frozen=True)
class ModelSpread:
    """What decides which bytes of a model a rank holds, what it does with them, and what it exchanges.

    `element`: bytes of a value in the chosen precision; `micro_steps`: of an optimizer step; `offload`: none,
    optimizer, param or optimizer+param, and `disk`: what of it goes further than the host; `device`: cpu or
    cuda; `together`: DeepSpeed makes the optimizer, not the Trainer; `moments`: values that it keeps of each
    weight beside the weight's copy;
    `keeps_half`: weights, gradients and moments are in that precision alone, where the engine would keep them
    in fp32; `casts`: each pass casts all weights, where the engine would leave that to autocast; `group`: so
    many neighbouring ranks hold all weights among themselves, 0: all ranks do;
    `sync_each_batch`: gradients are reduced in every micro-step, where the engine would wait for the last
    one; `bucket`, `prefetch`, `persistence`, `live`, `reuse`, `sub_group`: DeepSpeed's keys, in elements
    (`reuse`: max_reuse_distance); `sums`, `sent`: bytes of a gradient as DeepSpeed adds it up and sends it,
    None: as it comes; `ratio`: of ZeRO-3's sub-groups, those whose states leave the device with the
    optimizer; `overlap`: overlap_comm; `pins`: host memory is page-locked; `clips`: the
    ranks agree on the gradients' norm, which FSDP's do without clipping too (Transformers logs it in either
    case: trainer.py, _get_grad_norm); `counts`: the ranks agree on the number of tokens of a step.
    """

    engine: str
    ranks: int
    element: int = 4
    micro_steps: int = 1
    stage: int = 0
    offload: str = "none"
    disk: NvmeOffload = NO_DISK
    device: str = "cuda"
    together: bool = False
    moments: int = 2
    sync_each_batch: bool = False
    keeps_half: bool = False
    casts: bool = False
    group: int = 0
    bucket: int = 500_000_000
    overlap: bool = False
    prefetch: int = 50_000_000
    persistence: int = 100_000
    live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    sums: int | None = None
    sent: int | None = None
    ratio: float = 1.0
    pins: bool = True
    clips: bool = True
    counts: bool = True

    @property
    def accumulates(self) -> bool:
        """Whether a step has more than one micro-batch."""
        return self.micro_steps > 1

    @property
    def sums_whole(self) -> bool:
        """Whether an engine that can reduce gradients in the last micro-step alone does."""
        return self.accumulates and not self.sync_each_batch

    @property
    def kept(self) -> int:
        """Bytes of a weight, a gradient and each of Adam's moments, where PyTorch keeps them."""
        return self.element if self.keeps_half else 4

    @property
    def grouped(self) -> bool:
        """Whether there are several groups."""
        return 0 < self.group < self.ranks

    @property
    def sums_apart(self) -> bool:
        """Whether DeepSpeed's stage 1 adds gradients up in tensors of their own (BF16_Optimizer)."""
        return self.stage == 1 and self.summed > self.element

    @property
    def summed(self) -> int:
        """Bytes of a gradient as DeepSpeed adds it up."""
        return self.sums or self.element

    @property
    def message(self) -> int:
        """Bytes of a gradient as DeepSpeed sends it."""
        return self.sent or self.element

    @property
    def buckets(self) -> int:
        """How many of DeepSpeed's at once: two where communication overlaps."""
        return 2 if self.overlap else 1

    @property
    def moves_optimizer(self) -> bool:
        """Whether the optimizer's states, and with them gradients, leave the device."""
        return "optimizer" in self.offload

    @property
    def moves_parameters(self) -> bool:
        """Whether parameters leave the device."""
        return "param" in self.offload

    @property
    def own_adam(self) -> bool:
        """Whether the optimizer is DeepSpeed's own, which offloading its states takes."""
        return self.together or self.moves_optimizer

    def optimizer_groups(self, tensors: Tensors) -> list[Tensors]:
        """Return the optimizer's groups of trained parameters, in the model's order: with weight decay, and
        without.

        Source: transformers/trainer.py and worker/trainer.py, create_optimizer.
        """
        all_ = trained(tensors)
        plain = tuple(each for each in all_ if len(each.shape) < 2 or _NO_DECAY.search(each.name.lower()))
        names = {each.name for each in plain}
        decayed = tuple(each for each in all_ if each.name not in names)
        return [group for group in (decayed, plain) if group]

    def pinned(self, size: int) -> int:
        """Return the bytes of host memory for a page-locked block: torch rounds it up to a power of two
        (ATen/core/CachingHostAllocator.h, allocate). On CPUs nothing is pinned."""
        if self.device != "cuda" or not self.pins:
            return size
        return 1 << (size - 1).bit_length() if size else 0


def trained(tensors: Tensors) -> Tensors:
    """Pick the tensors that the optimizer changes."""
    return tuple(each for each in tensors if each.trained and each.numel)
