"""Whether a job fits: bytes per rank, in named parts, on the device and in the host's memory. Pure.

States of ZeRO by Rajbhandari et al. 2020 ("ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", section 5), corrected by what DeepSpeed 0.19 was measured to hold: in fp32, too, stages 1 to 3 keep a
master copy of a rank's part; an optimizer step needs 12 bytes more per parameter of the part; stages 1 and 2
allocate the whole reduce bucket (contiguous_gradients); stage 3 keeps up to max_live_parameters gathered.
Activations: planner/activations.py. The margin is for what these leave out: fragments of the allocator,
workspaces of matrix products, masks. Closed forms like these miss traces of real models by -18 to +37 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core import families
from muster.core.families import t5
from muster.planner.activations import Kept, Lengths, activation_bytes, logit_bytes, stacks

MARGIN = 0.1  # of a device's or a host's memory, left free
GB = 1_000_000_000
CONTEXT = GB * 8 // 10  # a CUDA context with its libraries: 0.3 to 1 GB
COMMUNICATOR = GB // 2  # of NCCL
PROCESS = GB * 7 // 10  # a rank's host memory before there is a model: interpreter, torch, DeepSpeed
PINNED = 1.8  # torch rounds each pinned block up to a power of two: measured 1.67 to 1.78
DDP_BUCKETS = 4  # bytes per trained parameter: gradients once more (gradient_as_bucket_view is off)
STEP = 12  # bytes per parameter of a rank's part, while DeepSpeed's optimizer steps


@dataclass(frozen=True)
class Setting:
    """What decides how much memory a rank needs."""

    config: Mapping[str, Any] = field(repr=False)
    parameters: int
    trainable: int
    lengths: Lengths
    engine: str
    precision: str
    device: str
    ranks: int
    ranks_per_host: int  # the most on one host
    micro: int = 1
    stage: int = 0
    offload: str = "none"
    checkpointing: bool = False
    create: str = "whole"
    bucket: int = 0  # elements of DeepSpeed's reduce bucket
    live: int = GB  # parameters that ZeRO-3 may keep gathered
    overlap: bool = False  # a second bucket
    saves: bool = True  # the first rank gathers the trained model

    @property
    def element(self) -> int:
        """Bytes of a value in the chosen precision."""
        return 4 if self.precision == "fp32" else 2

    @property
    def kept(self) -> Kept:
        """How activations are kept. T5 adds its position biases to the scores: never fused here. CPUs have
        no fused attention with dropout."""
        found = stacks(self.config, self.lengths) or []
        family = families.family_of(self.config)
        cpu = self.device == "cpu"
        fused = family is not t5 and not (cpu and any(each.attention_dropout for each in found))
        mixed = self.engine != "deepspeed" and self.element == 2
        return Kept(self.element, mixed=mixed, fused=fused, mask=self.element if cpu else 1)


@dataclass(frozen=True)
class Need:
    """Bytes per rank by what they are for. On CPUs everything is in `device`."""

    device: dict[str, int]
    host: dict[str, int]
    first_host: int = 0  # once more, on the first host alone


@dataclass(frozen=True)
class Room:
    """Bytes that a rank may use, at the smallest device and host; None: not known."""

    device: int | None
    host: int | None
    device_name: str = "a device"
    host_name: str = "a host"


def largest_tensor(setting: Setting) -> int:
    """Parameters of the largest matrix: the embeddings, or one of a feed-forward."""
    found = stacks(setting.config, setting.lengths) or []
    width = max((each.width for each in found), default=0)
    return max(
        [int(setting.config.get("vocab_size", 0)) * width, *(each.width * each.inner for each in found)]
    )


def layer_parameters(setting: Setting) -> int:
    """About the parameters of the largest layer: what FSDP gathers at once."""
    found = stacks(setting.config, setting.lengths) or []
    sizes = (
        each.width * (2 * (each.query + each.keys) * len(each.attentions) + 3 * each.inner) for each in found
    )
    return max(sizes, default=0)


def need(setting: Setting) -> Need | None:
    """What a rank needs at its peak; None for a family that is not known.

    The peak is in the backward pass or in the optimizer's step, whichever holds more.
    """
    activations = activation_bytes(
        setting.config, setting.lengths, setting.kept, checkpointing=setting.checkpointing
    )
    if activations is None:
        return None
    logits = logit_bytes(setting.config, setting.lengths, setting.kept)
    backward = {"activations": setting.micro * activations, "logits and loss": setting.micro * logits}
    states = _deepspeed if setting.engine == "deepspeed" else _fsdp if setting.engine == "fsdp" else _ddp
    device, host, passing, step = states(setting)
    backward |= passing
    peak = backward if sum(backward.values()) >= step else {"optimizer step": step}
    device = {name: value for name, value in {**device, **peak}.items() if value}
    return _with_overhead(setting, device, host)


def _with_overhead(setting: Setting, device: dict[str, int], host: dict[str, int]) -> Need:
    """What a process needs besides, and the model while it is made."""
    making = 4 * (setting.parameters if setting.create == "whole" else largest_tensor(setting))
    first = 4 * setting.parameters if setting.create == "sharded" and setting.engine == "fsdp" else 0
    if setting.saves and (setting.stage == 3 or setting.engine == "fsdp") and setting.ranks > 1:
        first = max(first, (4 if setting.engine == "fsdp" else setting.element) * setting.parameters)
    if setting.device == "cpu":
        everything = dict(device)
        for name, value in host.items():
            everything[name] = everything.get(name, 0) + value
        if sum(everything.values()) < making:
            everything = {"the model while it is made": making}
        return Need({**everything, "process": PROCESS}, {}, first)
    device["CUDA context"] = CONTEXT
    if setting.ranks > 1:
        device["NCCL"] = COMMUNICATOR
    held = sum(host.values())
    parts = host if held >= making else {"the model while it is made": making}
    return Need(device, {**parts, "process": PROCESS}, first)


_States = tuple[dict[str, int], dict[str, int], dict[str, int], int]  # device, host, in backward, in the step


def _ddp(setting: Setting) -> _States:
    """Everything in fp32 on every rank; autocast keeps copies of the weights from forward to backward."""
    device = {
        "parameters": 4 * setting.parameters,
        "gradients": 4 * setting.trainable,
        "optimizer": 8 * setting.trainable,
        "buckets": DDP_BUCKETS * setting.trainable if setting.ranks > 1 else 0,
    }
    copies = {"copies in half precision": 2 * setting.parameters if setting.element == 2 else 0}
    return device, {}, copies, 0


def _fsdp(setting: Setting) -> _States:
    """FSDP2: fp32 shards; two layers gathered at once, their gradients, and the embeddings."""
    if setting.ranks == 1:
        return _ddp(setting)
    n = setting.ranks
    shards = {
        "parameters": 4 * setting.parameters // n,
        "gradients": 4 * setting.trainable // n,
        "optimizer": 8 * setting.trainable // n,
    }
    units = 3 * layer_parameters(setting) + 2 * largest_tensor(setting)
    gathered = {"gathered layers": setting.element * min(units, 2 * setting.parameters)}
    if setting.offload != "none":
        return {}, {name: int(value * PINNED) for name, value in shards.items()}, gathered, 0
    return shards, {}, gathered, 0


def _deepspeed(setting: Setting) -> _States:
    """DeepSpeed's stages, with and without offload."""
    e, all_, own = setting.element, setting.parameters, setting.trainable
    stage, n = setting.stage, setting.ranks if setting.stage else 1
    part = own // n  # what this rank optimizes
    buckets = 2 if setting.overlap else 1
    bucket = setting.bucket if setting.device == "cuda" else min(setting.bucket, own)  # untouched pages: none
    device = {"parameters": e * all_}
    step = STEP * part
    master = 4 * part if e == 2 or stage else 0
    states = {"fp32 master": master, "optimizer": 8 * part}
    passing: dict[str, int] = {}
    if stage == 0:
        step = 4 * part if e == 2 else 0  # gradients in fp32
        passing["gradients"] = e * own
    elif stage == 1 and setting.offload == "none":
        passing |= {"gradients": e * own, "buckets": buckets * e * bucket}
        step += e * own
    elif stage in (1, 2):
        straddling = min(2 * largest_tensor(setting), own)  # whole where they cross a part's edge
        passing |= {"gradients": e * (part + straddling), "buckets": buckets * e * bucket}
    else:
        device = {"parameters": e * all_ // n}
        live = min(all_, max(setting.live, 2 * largest_tensor(setting)))
        states["gradients"] = e * part
        passing["buckets"] = (1 + buckets) * e * bucket
        passing["gathered parameters"] = e * live if n > 1 or "param" in setting.offload else 0
        step = STEP * min(part, GB) + passing["gathered parameters"]
    if setting.offload == "none":
        return {**device, **states}, {}, passing, step
    passing["largest parameter"] = e * largest_tensor(setting)
    pinned = PINNED if setting.device == "cuda" else 1
    states["fp32 gradients"] = 4 * part
    if "param" in setting.offload:
        states["parameters"] = device.pop("parameters")
    return device, {name: int(value * pinned) for name, value in states.items()}, passing, 0


def fits(setting: Setting, room: Room) -> bool:
    """Whether a rank's need is within its room, less the margin. What is not known is taken to fit."""
    found = need(setting)
    return found is None or not lacking(found, setting, room)


def lacking(found: Need, setting: Setting, room: Room) -> str | None:
    """device or host, where there is too little; None: it fits."""
    keep = 1 - MARGIN
    first = found.first_host / setting.ranks_per_host
    here = sum(found.device.values()) + (first if setting.device == "cpu" else 0)
    if room.device is not None and here > keep * room.device:
        return "device"
    if room.host is not None and sum(found.host.values()) + first > keep * room.host:
        return "host"
    return None


def largest_micro(setting: Setting, room: Room, top: int) -> int:
    """The largest micro-batch up to `top` that fits; 0: not even one sample does."""
    if not fits(replace(setting, micro=1), room):
        return 0
    low, high = 1, max(1, top)
    while low < high:  # what is needed grows with the micro-batch
        middle = (low + high + 1) // 2
        if fits(replace(setting, micro=middle), room):
            low = middle
        else:
            high = middle - 1
    return low
