"""What DeepSpeed 0.19.8 refuses of a whole configuration, or fails on, once it starts: values beside others,
each of which it reads without complaint. Pure.

Sources: deepspeed/runtime/engine.py (_do_sanity_check, _do_optimizer_sanity_check,
_configure_zero_optimizer), zero/config.py, zero/stage_1_and_2.py and zero/stage3.py (the constructors),
precision_config.py, base_optimizer.py (_configure_master_weights), zenflow; ops/adam and ops/lamb.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from muster.core.errors import RecipeError
from muster.engines.deepspeed.reading import section

_TESTED = (  # classes that ZeRO takes
    "Adam", "AdamW", "Adagrad", "MuonWithAuxAdam", "FusedAdam", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad",
    "FusedLion", "DeepSpeedCPULion",
)  # fmt: skip
UNTESTED = "zero_allow_untested_optimizer"  # the key with which it takes others
_NORM = "zero_optimization.compute_grad_norm"
_SCATTER = '"zero_optimization": {"reduce_scatter": false}'


class Refusal(NamedTuple):
    """A condition, and what its error says where it holds."""

    holds: bool
    where: str
    what: str
    hint: str = "leave it out"


def check_together(config: Mapping[str, Any], optimizer: str, clip: float) -> None:
    """Raise RecipeError for the first value that DeepSpeed refuses beside others. `optimizer`: the class that
    it makes of the file's; empty: it gets PyTorch's AdamW, or what accelerate makes of that."""
    for each in (
        *_of_optimizers(config, optimizer),
        *_of_gradients(config, clip),
        *_of_types(config, optimizer),
        *_of_zenflow(config),
    ):
        if each.holds:
            raise RecipeError(each.what, where=each.where, hint=each.hint)


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of a value of a type that DeepSpeed knows by name."""
    return 4 if "32" in dtype or dtype == "float" else 2


def offloads(config: Mapping[str, Any]) -> bool:
    """Return whether the optimizer is one for host memory, whatever the stage (zero_use_cpu_optimizer)."""
    offload = section(section(config, "zero_optimization"), "offload_optimizer")
    return offload.get("device", "none") not in (None, "none")


def _of_optimizers(config: Mapping[str, Any], optimizer: str) -> Iterator[Refusal]:
    zero, params = section(config, "zero_optimization"), section(section(config, "optimizer"), "params")
    stage, kind, where = zero["stage"], section(config, "optimizer").get("type"), "optimizer.type"
    yield Refusal(
        bool(stage and optimizer) and optimizer not in _TESTED and not config.get(UNTESTED),
        where, f"is {kind}, which DeepSpeed does not take under ZeRO without {UNTESTED}",
        f'"{UNTESTED}": true, stage 0, or AdamW',
    )  # fmt: skip
    # DeepSpeed makes it anew with one group of parameters for all, and then asks for the second
    # (initialize_optimizer_states).
    yield Refusal(
        optimizer == "Adagrad" and bool(stage),
        where, "Adagrad fails under ZeRO: DeepSpeed loses its parameters without weight decay",
        "zero_optimization.offload_optimizer with device: cpu, stage 0, or AdamW",
    )  # fmt: skip
    yield Refusal(
        optimizer.startswith("DeepSpeedCPU") and not stage,
        "zero_optimization.offload_optimizer", f"makes a {optimizer}, and without ZeRO GPUs have the weights",
        "zero_optimization.stage=1, 2 or 3, or leave it out",
    )  # fmt: skip
    yield Refusal(
        optimizer in ("FusedAdam", "DeepSpeedCPUAdam", "FusedLamb") and bool(params.get("amsgrad")),
        "optimizer.params.amsgrad", f"is true, and {optimizer} of DeepSpeed has no such variant",
        'leave it out, or "torch_adam": true' if "Adam" in optimizer else "leave it out",
    )  # fmt: skip
    yield Refusal(
        optimizer == "FusedLamb" and bool(section(config, "fp16").get("loss_scale")),
        "fp16.loss_scale", "is fixed, and DeepSpeed's Lamb wants a dynamic one", "leave it out, or 0",
    )  # fmt: skip
    yield Refusal(optimizer in _UNFIT, where, f"is {kind}, which takes no {_UNFIT.get(optimizer)}", "AdamW")
    for name in ("reduce_scatter", "zero_quantized_gradients"):
        yield Refusal(
            optimizer == "MuonWithAuxAdam" and stage == 3 and zero.get(name, name == "reduce_scatter"),
            f"zero_optimization.{name}", "is on, and does not go with Muon under ZeRO-3", f'"{name}": false',
        )  # fmt: skip


def _of_gradients(config: Mapping[str, Any], clip: float) -> Iterator[Refusal]:
    zero, norm = section(config, "zero_optimization"), "is false, and"
    stage, lacks = zero["stage"], not zero.get("compute_grad_norm", True)
    yield Refusal(lacks and stage not in (1, 2), _NORM, f"{norm} ZeRO-{stage} takes the norm")
    yield Refusal(
        lacks and offloads(config), _NORM, f"{norm} with offload_optimizer DeepSpeed takes the norm"
    )
    yield Refusal(lacks and "zenflow" in zero, _NORM, f"{norm} zenflow takes the norm")
    yield Refusal(lacks and _apart(config), _NORM, f"{norm} with data_types.grad_accum_dtype it is taken")
    yield Refusal(
        lacks and clip > 0,
        _NORM, f"{norm} clipping at {clip:g} takes the norm",
        'leave it out, or train.clip=0 and "gradient_clipping": 0',
    )  # fmt: skip
    scattered = zero.get("reduce_scatter", True) and (stage == 3 or stage == 2)
    for name, asked in (
        ("prescale_gradients", config.get("prescale_gradients", False)),
        ("gradient_predivide_factor", config.get("gradient_predivide_factor", 1.0) != 1.0),
    ):
        yield Refusal(
            bool(scattered and asked),
            name, f"is {json.dumps(config.get(name))}, and ZeRO-{stage} scatters gradients in reducing them",
            f"leave it out, or {_SCATTER}",
        )  # fmt: skip
    yield Refusal(
        stage == 3 and zero.get("zero_quantized_gradients", False) and not zero.get("reduce_scatter", True),
        "zero_optimization.zero_quantized_gradients", "needs reduce_scatter",
    )  # fmt: skip
    yield Refusal(
        bool(stage) and not _apart(config) and zero.get("legacy_stage1", False),
        "zero_optimization.legacy_stage1", "is true, and DeepSpeed has that stage 1 no longer",
    )  # fmt: skip
    bucket = int(zero.get("allgather_bucket_size", 0))
    yield Refusal(
        stage in (1, 2) and bool(bucket % 2),
        "zero_optimization.allgather_bucket_size", f"is {bucket}, and must be even", f"{bucket + 1}",
    )  # fmt: skip


# Optimizers of PyTorch, and what they do not take: groups with and without weight decay; a model's gradients.
_UNFIT = {"LBFGS": "groups of parameters", "SparseAdam": "dense gradients"}


def _of_types(config: Mapping[str, Any], optimizer: str) -> Iterator[Refusal]:
    zero, fp16, bf16 = (section(config, name) for name in ("zero_optimization", "fp16", "bf16"))
    stage, offload, data = zero["stage"], section(zero, "offload_optimizer"), section(config, "data_types")
    half = next((name for name in ("fp16", "bf16") if section(config, name)["enabled"]), "fp32")
    ratio, kept, asked = offload.get("ratio", 1.0), data.get("grad_accum_dtype"), data.get("param_dtype")
    own_adam = not optimizer and config.get("zero_force_ds_cpu_optimizer", True)
    host = bool(stage) and offloads(config) and (own_adam or optimizer == "DeepSpeedCPUAdam")
    in_fp16, in_bf16 = fp16.get("fp16_master_weights_and_grads"), bf16.get("bf16_master_weights_and_grads")
    states = bf16.get("bf16_optimizer_states")
    where, on_host = (
        "bf16.bf16_master_weights_and_grads",
        "works only with ZeRO and DeepSpeed's Adam in host memory",
    )
    yield Refusal(
        stage != 3 and ratio < 1,
        "zero_optimization.offload_optimizer.ratio", f"is {ratio:g}, and ZeRO-{stage} moves all",
    )  # fmt: skip
    yield Refusal(
        stage == 3 and offloads(config) and ratio < 1 and not host,
        "zero_optimization.offload_optimizer.ratio", f"is {ratio:g}, and {on_host}",
    )  # fmt: skip
    yield Refusal(bool(in_fp16 and in_bf16), where, "is on, and fp16_master_weights_and_grads as well")
    yield Refusal(bool(in_fp16 and not host), "fp16.fp16_master_weights_and_grads", on_host)
    yield Refusal(bool(in_bf16 and (not states or offloads(config)) and not host), where, on_host)
    yield Refusal(
        bool(states and not (in_bf16 and stage)),
        "bf16.bf16_optimizer_states", "works only with ZeRO and bf16_master_weights_and_grads",
    )  # fmt: skip
    yield Refusal(
        bool(states and offloads(config) and not optimizer),
        "bf16.bf16_optimizer_states", "works in host memory only with an optimizer of DeepSpeed's own",
        '"optimizer": {"type": "AdamW"}, or leave it out',
    )  # fmt: skip
    yield Refusal(
        not stage and kept is not None and _TYPES[kept.removeprefix("torch.")] != half,
        "data_types.grad_accum_dtype", f"is {kept}, and without ZeRO gradients are as the model",
    )  # fmt: skip
    yield Refusal(
        asked is not None and _TYPES[asked.removeprefix("torch.")] != half,
        "data_types.param_dtype", f"is {asked}, and the model computes in {half}",
    )  # fmt: skip
    yield Refusal(config.get("steps_per_print") == 0, "steps_per_print", "is 0, and DeepSpeed divides by it")
    held = data.get("keep_in_fp32_modules", "auto")
    yield Refusal(
        held != "auto" and not (isinstance(held, list) and all(isinstance(each, str) for each in held)),
        "data_types.keep_in_fp32_modules", f"is {json.dumps(held)}, and must be a list of names",
    )  # fmt: skip
    for name in ("loss_scale_window", "min_loss_scale"):
        yield Refusal(
            half == "fp16" and not fp16.get("loss_scale") and fp16.get(name, 1) <= 0,
            f"fp16.{name}", f"is {fp16.get(name)}, and must be above 0 where the scale is dynamic",
        )  # fmt: skip


_TYPES = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
}


def _of_zenflow(config: Mapping[str, Any]) -> Iterator[Refusal]:
    zero, where = section(config, "zero_optimization"), "zero_optimization.zenflow"
    if "zenflow" not in zero:
        return
    zenflow = section(zero, "zenflow")
    strategy, select = zenflow.get("select_strategy", "auto"), zenflow.get("select_interval", "auto")
    update = zenflow.get("update_interval", "auto")
    needed = "needs ZeRO and an optimizer in host memory"
    yield Refusal(not zero["stage"] or not offloads(config), where, needed)
    yield Refusal(
        strategy not in ("auto", "step", "epoch"),
        f"{where}.select_strategy", f"is {strategy}, and must be auto, step or epoch",
    )  # fmt: skip
    for name, value in (("select_interval", select), ("update_interval", update)):
        yield Refusal(
            isinstance(value, str) and value != "auto",
            f"{where}.{name}", f'is {json.dumps(value)}, and must be a number or "auto"',
        )  # fmt: skip
    yield Refusal(
        (strategy == "auto") is isinstance(select, int),
        f"{where}.select_interval",
        "is a number, and select_strategy decides it" if strategy == "auto" else "must be a number",
    )  # fmt: skip
    yield Refusal(
        isinstance(update, int) and update < 1, f"{where}.update_interval", f"is {update}, and must be from 1"
    )
    yield Refusal(
        isinstance(update, int) and isinstance(select, int) and 0 < select < update and strategy == "step",
        f"{where}.select_interval", f"is {select}, and less than update_interval",
    )  # fmt: skip
    yield Refusal(
        bool(zenflow.get("offload")) and not zero.get("overlap_comm", zero["stage"] == 3),
        f"{where}.offload", "needs overlap_comm", '"overlap_comm": true, or leave it out',
    )  # fmt: skip


def _apart(config: Mapping[str, Any]) -> bool:
    """Return whether DeepSpeed leaves ZeRO to its optimizer for bf16 that adds gradients up in fp32."""
    zero, kept = section(config, "zero_optimization"), section(config, "data_types").get("grad_accum_dtype")
    on_cpu = section(zero, "offload_optimizer").get("device") == "cpu"
    bf16 = section(config, "bf16")["enabled"]
    return bool(bf16) and kept is not None and dtype_bytes(kept) == 4 and zero["stage"] == 1 and not on_cpu
