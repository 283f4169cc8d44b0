"""What engines really hand to gloo in an optimizer step, and what gloo puts on the wire, against the plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipe import recipe_from
from muster.core.trace import Parameter
from muster.engines.traffic import Call
from muster.planner.predict import case_of
from muster.planner.setting import setting_of
from muster.planner.time.collective import ring
from muster.planner.time.steptime import traffic_of
from tests.support import needs_torch, parse_machines, ranks

pytestmark = [pytest.mark.real, pytest.mark.timeout(960)]

RANKS, WIDTH = 2, 256
SMALL = {"zero_optimization": {"reduce_bucket_size": 1_000_000}}
FAR = {"zero_optimization": {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}}

SENT = {"communication_data_type": "fp32"}
SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}


def case(
    engine: str,
    zero: int = 0,
    accumulation: int = 1,
    precision: str = "fp32",
    *,
    tied: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """A tiny GPT-2 over random tokens."""
    options, offload = more.pop("options", {}), more.pop("offload", "none")
    sync, group = more.pop("sync_each_batch", "auto"), more.pop("group", None)
    layers = 8 if engine == "ddp" else 4  # more than one of DDP's buckets
    recipe = {
        "workload": "causal-lm",
        "model": {
            "init": "random",
            "config": {
                "model_type": "gpt2", "n_embd": WIDTH, "n_layer": layers, "n_head": 4, "n_positions": 32,
                "vocab_size": 6000, "tie_word_embeddings": tied, "attn_pdrop": 0.0,
                "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            },
        },
        "data": {"synthetic": {"samples": 64}, "sequence": 32},
        "engine": {
            "name": engine, "zero": zero, "options": options, "offload": offload, "sync_each_batch": sync,
            "group": group,
        },
        "train": {"max_steps": 4, **more.pop("train", {})},
        "evaluate": {"after": False},
        **more,
    }  # fmt: skip
    return {"recipe": recipe, "accumulation": accumulation, "precision": precision}


CASES = {
    "ddp": case("ddp"),
    "ddp, accumulation 3": case("ddp", accumulation=3),
    "ddp, bf16": case("ddp", precision="bf16"),
    "ddp, adapters": case("ddp", lora={"rank": 8, "targets": ["c_attn", "c_fc"]}),
    "zero 0, accumulation 3": case("deepspeed", accumulation=3),
    "zero 1, accumulation 3": case("deepspeed", 1, accumulation=3),
    "zero 1, bf16": case("deepspeed", 1, precision="bf16"),
    "zero 1, small buckets": case("deepspeed", 1, options=SMALL),
    "zero 2, small buckets, accumulation 3": case("deepspeed", 2, accumulation=3, options=SMALL),
    "zero 2, offload": case("deepspeed", 2, offload="optimizer"),
    "zero 2, adapters": case("deepspeed", 2, lora={"rank": 8, "targets": ["c_attn", "c_fc"]}),
    "zero 0, bf16, sent in fp32": case("deepspeed", precision="bf16", options=SENT),
    "zero 1, bf16, summed in fp32": case("deepspeed", 1, accumulation=3, precision="bf16", options=SUMS),
    "zero 2, bf16, sent in fp32": case("deepspeed", 2, accumulation=3, precision="bf16", options=SENT),
    "zero 3, bf16, sent in fp32": case("deepspeed", 3, precision="bf16", options=SENT),
    "zero 3": case("deepspeed", 3),
    "zero 3, accumulation 3, bf16": case("deepspeed", 3, accumulation=3, precision="bf16"),
    "zero 3, gathered twice": case("deepspeed", 3, options=FAR, tied=False),
    "zero 0, no clipping, bf16": case("deepspeed", precision="bf16", train={"clip": 0}),
    "zero 1, no clipping": case("deepspeed", 1, train={"clip": 0}),
    "fsdp": case("fsdp"),
    "fsdp, no clipping": case("fsdp", train={"clip": 0}),
    "fsdp, accumulation 3": case("fsdp", accumulation=3),
    "fsdp, accumulation 3, reduced each": case("fsdp", accumulation=3, sync_each_batch=True),
    "fsdp, bf16": case("fsdp", precision="bf16"),
    "fsdp, untied": case("fsdp", tied=False),
    "fsdp, half kept alone": case("fsdp", precision="bf16", train={"optimizer": "adamw-bf16"}),
    "ddp, half kept alone": case("ddp", precision="bf16", train={"optimizer": "adamw-bf16"}),
}
# Of four ranks, two and two in a group.
GROUPED = {
    "fsdp in groups": case("fsdp", group=2, precision="bf16", accumulation=3),
    "fsdp in groups, reduced each": case("fsdp", group=2, accumulation=3, sync_each_batch=True),
    "zero 3 in groups, accumulation 3": case(
        "deepspeed", 3, accumulation=3, options=FAR, group=2, tied=False
    ),
}
ALL = {
    **{name: (RANKS, each) for name, each in CASES.items()},
    **{name: (4, GROUPED[name]) for name in GROUPED},
}


def count(folder: Path) -> dict[str, Any]:
    """What ranks told of each case."""
    return {**_start(folder / "two", RANKS, CASES), **_start(folder / "four", 4, GROUPED)}


def _start(folder: Path, number: int, cases: dict[str, Any]) -> dict[str, Any]:
    """One start of so many ranks, which train with every engine in turn."""
    folder.mkdir()
    (folder / "asked.json").write_text(json.dumps(cases))
    done = subprocess.run(
        ranks(number, "tests.real.traffic_ranks", str(folder)),
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(number)]
    for name in cases:  # every rank calls the same
        assert Counter(map(tuple, found[0][name]["calls"])) == Counter(map(tuple, found[1][name]["calls"]))
    return dict(found[0])


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    needs_torch()
    return count(tmp_path_factory.mktemp("traffic"))


def as_gloo(call: Call, ranks: int) -> tuple[tuple[str, int], int]:
    """Operation and ranks; bytes. gloo reduces the whole array where a part is asked for."""
    operation = "all-reduce" if call.operation == "reduce-scatter" else call.operation
    of = ranks // call.group if call.across else call.group or ranks
    return (operation, of), call.size


Calls = list[tuple[tuple[str, int], int]]


def both(name: str, counted: dict[str, Any]) -> tuple[Calls, Calls, bool]:
    """Operations by their ranks with their bytes, as planned and as called; and whether their number is only
    nearly known: ZeRO-3's depends on how modules nest, and FSDP makes a unit of its own of the last norm and
    the output."""
    parameters = [
        Parameter(n, tuple(shape), trained, unit) for n, shape, trained, unit in counted[name]["parameters"]
    ]
    number, asked = ALL[name]
    recipe = recipe_from(asked["recipe"])
    setting = setting_of(recipe, recipe.model.config, asked["precision"], "cpu", [1] * number)
    assert setting is not None
    job = case_of(
        setting.spreading(micro_steps=asked["accumulation"]), parse_machines(f"cpu{{tflops=1}}:{number}")
    )
    assert job is not None
    spread = job.placed
    planned = [as_gloo(call, number) for call in traffic_of(parameters, spread).calls()]
    really = [((operation, of), size) for operation, size, of in counted[name]["calls"]]
    return planned, really, spread.stage == 3 or spread.engine == "fsdp"


@pytest.mark.parametrize("name", ALL)
def test_the_plan_is_what_is_called(name: str, counted: dict[str, Any]) -> None:
    """Every byte of every operation, and the number of calls."""
    planned, really, loose = both(name, counted)
    times = ALL[name][1]["accumulation"]
    for operation in {kind for kind, _ in (*planned, *really)}:
        sizes = [sorted(size for kind, size in calls if kind == operation) for calls in (planned, really)]
        assert sum(sizes[0]) == sum(sizes[1]), (operation, sizes)
        assert abs(len(sizes[0]) - len(sizes[1])) <= (3 * times if loose else 0), (operation, sizes)


def test_what_gloo_puts_on_the_wire() -> None:
    """In a network namespace of its own, whose loopback counts bytes: what three ranks send for a
    collective."""
    needs_torch()
    namespace = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
    if (
        not shutil.which("unshare")
        or subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this needs a network namespace of its own")
    done = subprocess.run(
        [*namespace, "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
         *ranks(3, "tests.real.wire_ranks")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counted = json.loads(done.stdout.strip().splitlines()[-1])
    assert counted
    for operation, size, on_wire in counted:
        planned = 3 * ring(Call(operation, size), ranks=3, hosts=3, library="gloo").size
        assert on_wire == pytest.approx(planned, rel=0.03), operation  # headers of TCP/IP, acknowledgements
