"""DeepSpeed's own reader and Muster's, side by side: what they take, and what they make of it."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.recipe import recipe_from
from muster.engines.deepspeed.config import deepspeed_config, read_user_config, user_precision
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

File = dict[str, Any]
BOOLS: tuple[Any, ...] = (
    True, False, 0, 1, 2, 0.0, 1.0, 1.5, "true", "false", "True", "yes", "no", "on", "off", "0", "1", "2",
    "t", None, "auto", "", [], {},
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    16, 16.0, 16.5, "16", "16.0", "1e5", " 16 ", "0x10", True, False, None, "auto", -1, 0, "0", 1e9, 5e8,
    "5e8", [], {}, "abc",
)  # fmt: skip
FRACTIONS: tuple[Any, ...] = (0, 1, 0.5, "0.5", "1e-1", 1.5, -0.1, True, None, "auto", "all", [])
TEXTS: tuple[Any, ...] = ("a", "", "auto", None, 1, True, [], {})
STAGES: tuple[Any, ...] = (0, 1, 2, 3, 4, -1, "2", "3", "4", 2.0, 2.5, True, False, None, "two", [2], {})
DEVICES: tuple[Any, ...] = ("cpu", "none", "nvme", "CPU", "auto", None, 0, True)
SECTIONS: tuple[Any, ...] = (None, 1, "cpu", {}, [])
DTYPES: tuple[Any, ...] = ("fp16", "FP16", "bf16", "fp32", "float16", "float", None, 16, "fp8", "auto")
HALF = {"bf16": {"enabled": True}}
OFF = {"offload_optimizer": {"device": "cpu"}}


def zero(stage: Any = 2, **keys: Any) -> File:
    return {"zero_optimization": {"stage": stage, **keys}}


# Read by pydantic: Muster takes exactly what DeepSpeed takes.
CONVERTED: list[File] = [
    *(
        zero(**{key: each})
        for each in BOOLS
        for key in ("overlap_comm", "contiguous_gradients", "cpu_offload")
    ),
    *(
        {section: {"enabled": each}}
        for each in BOOLS
        for section in ("fp16", "bf16", "tensorboard", "comms_logger")
    ),
    *({"timers": {"throughput": {"enabled": each}}} for each in BOOLS),
    *(
        zero(3, **{key: each})
        for each in NUMBERS
        for key in (
            "reduce_bucket_size", "allgather_bucket_size", "stage3_max_live_parameters", "max_reuse_distance",
            "stage3_module_granularity_threshold", "zero_hpz_partition_size",
        )
    ),
    *(zero(3, offload_optimizer={"device": "cpu", "buffer_count": each}) for each in NUMBERS),
    *(
        {"fp16": {"enabled": on, key: each}}
        for each in NUMBERS
        for on in (True, False)
        for key in ("initial_scale_power", "loss_scale", "loss_scale_window", "min_loss_scale")
    ),
    *(zero(3, offload_optimizer={"device": "cpu", "ratio": each}) for each in FRACTIONS),
    *({"wandb": {key: each}} for each in TEXTS for key in ("project", "group")),
    *(zero(each) for each in STAGES),
    *(zero(3, offload_optimizer={"device": each, "nvme_path": "/local"}) for each in DEVICES),
    *(zero(**{key: each}) for each in SECTIONS for key in ("offload_optimizer", "leaf_module")),
    *(zero(zenflow=each, **OFF) for each in SECTIONS),
    *(
        {section: each}
        for each in (*SECTIONS, True, False)
        for section in (
            "zero_optimization", "fp16", "bf16", "comms_logger", "tensorboard", "aio", "flops_profiler",
            "activation_checkpointing", "data_types", "checkpoint", "compile", "optimizer", "scheduler",
        )
    ),
    *(zero(leaf_module={"classes": each}) for each in ("A", ["A", "B"], [1], None)),
    *({"comms_logger": {"prof_ops": each}} for each in ("all", ["all_reduce"], [], None)),
    *({"communication_data_type": each} for each in DTYPES),
    *({**zero(stage, compute_grad_norm=False), "gradient_clipping": 0} for stage in (0, 1, 2, 3)),
    *(zero(stage, offload_optimizer={"device": "cpu", "ratio": 0.5}) for stage in (1, 2, 3)),
    *({**HALF, **zero(1), "fp16": {"enabled": on}} for on in (True, "1", False, "auto")),
    {**HALF, **zero(1), "bf16": {"enabled": True, "bf16_optimizer_states": True}},
    {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
    {"bf16": {"enabled": True, "auto_cast": False}}, zero(overlap_com=True),
    {"gradient_allreduce_op": "MEAN"}, {"sequence_parallel_size": 1}, {"wall_clock_breakdown": 1},
]  # fmt: skip
# Taken as they are: what DeepSpeed would stumble over later, or take for something else, Muster refuses.
AS_THEY_ARE: list[File] = [
    *({key: each} for each in BOOLS for key in ("wall_clock_breakdown", "prescale_gradients")),
    *({key: each} for each in NUMBERS for key in ("steps_per_print", "gradient_clipping")),
    *({"flops_profiler": {"enabled": each}} for each in BOOLS),
    *({"flops_profiler": {"profile_step": each}} for each in NUMBERS),
    *({"data_types": {"grad_accum_dtype": each}, **zero(1)} for each in DTYPES),
]
# Transformers reads it before DeepSpeed does, and takes no such text for ZeRO's sections.
UNREAD: list[File] = [{"tensorboard": "auto"}, *(zero(**{key: "auto"}) for key in ("offload_param", "stage"))]


def adam(kind: str = "AdamW", **params: Any) -> File:
    return {"optimizer": {"type": kind, "params": {"lr": 1e-3, **params}}}


TO_FP32: File = {"data_types": {"grad_accum_dtype": "fp32"}}
MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}
HOST_MASTERS: File = {"bf16": MASTERS, **zero(2, **OFF)}
# Read by DeepSpeed one by one, and refused beside each other when its engine starts, or on a step; or not.
BESIDE: list[File] = [
    *(
        {**zero(stage, reduce_scatter=scatters), **how}
        for stage in (0, 1, 2, 3)
        for scatters in (True, False)
        for how in ({"prescale_gradients": True}, {"gradient_predivide_factor": 2.0})
    ),
    *({**zero(2, compute_grad_norm=False), "gradient_clipping": clip} for clip in (0, 1)),
    {**zero(2, compute_grad_norm=False, **OFF), "gradient_clipping": 0},
    *(
        {**HALF, **TO_FP32, **zero(1, compute_grad_norm=norm), "gradient_clipping": 0}
        for norm in (True, False)
    ),
    *(zero(stage, legacy_stage1=True) for stage in (0, 1, 2)),
    {**HALF, **TO_FP32, **zero(1, legacy_stage1=True)},
    *(zero(stage, allgather_bucket_size=1001) for stage in (0, 1, 3)),
    *(
        {**half, "data_types": {"param_dtype": dtype}}
        for half in ({}, HALF)
        for dtype in ("fp32", "bfloat16")
    ),
    *({"data_types": {"keep_in_fp32_modules": each}} for each in ("auto", "all", ["0"], [1])),
    *({**half, **TO_FP32} for half in ({}, HALF)),
    {"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}},
    *(adam("Adam", **more) for more in ({"torch_adam": True}, {"amsgrad": True})),
    *(adam(kind) for kind in ("FusedAdam", "DeepSpeedCPUAdam", "FusedLion", "LBFGS", "SparseAdam")),
    *(adam(kind) for kind in ("sgd", "SGD", "OneBitAdam")),
    *({**adam(kind), **zero(stage)} for kind in ("Adagrad", "RMSprop") for stage in (0, 1)),
    {**adam("RMSprop"), **zero(1), "zero_allow_untested_optimizer": True},
    {**adam("FusedAdam"), **zero(1), "zero_allow_untested_optimizer": True},
    {"fp16": {"enabled": True, "loss_scale": 128}, **adam("Lamb")},
    HOST_MASTERS, {**HOST_MASTERS, **adam()},
    *(
        {**more, "bf16": {**MASTERS, "bf16_optimizer_states": True}, **zero(2, **off)}
        for more in ({}, adam())
        for off in ({}, OFF)
    ),
    {**zero(1, **OFF), "fp16": {"fp16_master_weights_and_grads": True}, "bf16": MASTERS},
    zero(3, zero_quantized_gradients=True, reduce_scatter=False),
    {"steps_per_print": 0}, zero(2, zenflow={}),
    *(
        {**adam(), **zero(2, zenflow=each, **OFF)}
        for each in (
            {"select_strategy": "step"}, {"select_strategy": "never"}, {"update_interval": 0},
            {"update_interval": "all"}, {"select_interval": 2}, {"offload": True},
            {"select_strategy": "step", "select_interval": 1, "update_interval": 4},
        )
    ),
]  # fmt: skip
# Refused by DeepSpeed even where they are switched off, and left out then.
GONE = ("nebula", "amp", "sparse_gradients", "sparse_attention", "elasticity", "quantize_training")


@pytest.fixture(scope="module")
def reader() -> Iterator[Any]:
    needs_torch()
    from deepspeed.runtime.config import DeepSpeedConfig

    logging.disable(logging.CRITICAL)
    yield DeepSpeedConfig
    logging.disable(logging.NOTSET)


def plain(value: Any) -> Any:
    """A configuration's values to compare: 0 is False, and a key that is null is not there."""
    if hasattr(value, "model_dump"):
        return {key: plain(each) for key, each in value.model_dump().items() if each is not None}
    if type(value).__module__.startswith("deepspeed") and hasattr(value, "__dict__"):
        return {key: plain(each) for key, each in vars(value).items() if key != "_param_dict"}
    return value


def read(reader: Any, file: File) -> Any:
    """What DeepSpeed makes of a file on one rank; None: it refuses it."""
    with_batch = {"train_batch_size": 1, **json.loads(json.dumps(file))}
    try:
        return plain(reader(copy.deepcopy(with_batch)))
    except Exception:  # whatever it fails by
        return None


def taken(folder: Path, file: File) -> File | None:
    """What Muster makes of a file, where a run would get it; None: it refuses it."""
    path = folder / "ds.json"
    path.write_text(json.dumps(file))
    recipe = recipe_from({"engine": {"name": "deepspeed", "config": str(path)}})
    try:
        made = read_user_config(str(path))
        deepspeed_config(recipe, Batch(1, 1, 1), user_precision(made) or "fp32")
    except RecipeError:
        return None
    return made


def test_what_pydantic_converts(reader: Any, tmp_path: Path) -> None:
    wrong = []
    for file in CONVERTED:
        theirs, ours = read(reader, file), taken(tmp_path, file)
        if (theirs is None) != (ours is None) or (ours is not None and read(reader, ours) != theirs):
            wrong.append((file, "DeepSpeed refuses it" if theirs is None else ours))
    assert not wrong


def test_what_is_taken_as_it_is(reader: Any, tmp_path: Path) -> None:
    some = 0
    for file in AS_THEY_ARE:
        ours = taken(tmp_path, file)
        if ours is not None:
            some += 1
            assert read(reader, ours) == read(reader, file) is not None, file
    assert 30 < some < len(AS_THEY_ARE) / 2


def test_a_text_that_would_be_true(reader: Any, tmp_path: Path) -> None:
    """DeepSpeed reads "false" there as true."""
    file = {"prescale_gradients": "false"}
    assert read(reader, file)["prescale_gradients"] == "false"
    assert taken(tmp_path, file) is None


def test_what_transformers_does_not_read(tmp_path: Path) -> None:
    assert [taken(tmp_path, file) for file in UNREAD[::2]] == [None, None]


def test_keys_that_are_gone(reader: Any, tmp_path: Path) -> None:
    for key in GONE:
        for off in (False, None, {"enabled": False}):
            assert read(reader, {key: off}) is None
            made = taken(tmp_path, {key: off})
            assert made is not None and read(reader, made) is not None
        assert taken(tmp_path, {key: {"enabled": True}}) is None


def test_both_names_of_bf16(reader: Any, tmp_path: Path) -> None:
    """DeepSpeed reads one alone."""
    both = {"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}
    assert read(reader, both)["bfloat16_config"]["enabled"] is False and taken(tmp_path, both) is None
    assert taken(tmp_path, {**both, "bf16": None}) is not None


@pytest.mark.timeout(900)  # 25 s, and some minutes where the operators are not built yet
def test_what_does_not_go_together(tmp_path: Path) -> None:
    """DeepSpeed's engine starts and takes two steps with what Muster takes, and with nothing else."""
    needs_torch()
    ours, files = [taken(tmp_path, file) for file in BESIDE], tmp_path / "files.json"
    usual = {"train_batch_size": 1, "gradient_clipping": 1.0}
    files.write_text(json.dumps([{**usual, **file} for file in BESIDE]))
    argv = [sys.executable, "-m", "tests.real.starting", str(files), str(out := tmp_path / "out.json")]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    theirs = json.loads(out.read_text())
    assert [
        (file, why or "it runs")
        for file, mine, why in zip(BESIDE, ours, theirs, strict=True)
        if (mine is None) is (why is None)
    ] == []
    assert 10 < sum(each is None for each in ours) < len(BESIDE) - 10
