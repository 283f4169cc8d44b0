"""Collects into .whl/ what a GPU machine without a network lacks.

    python -m benchmarks.gpu.wheels              # here, where pip has an index; DeepSpeed's needs torch
    pip install --no-index --no-deps --target /tmp/site .whl/*.whl                # there
    MUSTER_COMMIT=VERSION PYTHONPATH=/tmp/site \
        python -m benchmarks.gpu run --minutes 6 --before benchmarks/results/gpu --out DIR

What DIR holds is to be brought back to a folder of this machine in benchmarks/results/gpu: the next call goes
on from it, with `--changed` where code has changed meanwhile.

For Python 3.12 on x86_64, in the versions of constraints.txt. The machine has torch, transformers,
accelerate and peft, and THERE of what these and Muster need. DeepSpeed's own operators are not built: its
wheel has their sources, and the machine's compiler makes those that are used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.gpu.kit import ROOT

PLACE = ROOT / ".whl"
MOST = 60e6  # bytes in all
BUILT = "deepspeed"  # there is no wheel of it
CARRIED = (
    "annotated-types", "datasets", "dill", "google-re2", "hjson", "multiprocess", "py-cpuinfo", "py-spy",
    "pydantic", "pydantic_core", "tensorboardX", "trl", "typing-inspection", "typing_extensions",
)  # fmt: skip
THERE = {
    "accelerate", "click", "einops", "filelock", "fsspec", "huggingface-hub", "jinja2", "msgpack", "ninja",
    "numpy", "packaging", "pandas", "pathspec", "peft", "pillow", "protobuf", "psutil", "pyarrow", "pyyaml",
    "rich", "sentencepiece", "setuptools", "torch", "tqdm", "transformers", "xxhash",
}  # fmt: skip
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64")


def main() -> int:
    """Exit code 1: they are too large, or something that they need is missing."""
    PLACE.mkdir(exist_ok=True)
    for old in PLACE.glob("*.whl"):
        old.unlink()
    pins = pinned((ROOT / "constraints.txt").read_text())
    there = [word for each in PLATFORMS for word in ("--platform", each)]
    subprocess.run(
        [*PIP, "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation",
         "cp", *there, "--dest", str(PLACE), *(pins[plain(name)] for name in CARRIED)],
        check=True,
    )  # fmt: skip
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(PLACE), pins[BUILT]],
        env={**os.environ, "DS_BUILD_OPS": "0"}, check=True,
    )  # fmt: skip
    wheels = sorted(PLACE.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    print(f"{size / 1e6:6.2f} MB in all, of {MOST / 1e6:.0f}")
    missing = (
        {need for wheel in wheels for need in needs(wheel)} - THERE - {plain(n) for n in (*CARRIED, BUILT)}
    )
    if missing:
        print(f"neither here nor on the machine: {', '.join(sorted(missing))}")
    return 1 if missing or size > MOST else 0


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(constraints: str) -> dict[str, str]:
    """name==version of each line, by name."""
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in constraints.splitlines())
    return {plain(line.partition("==")[0]): line for line in lines if "==" in line}


def needs(wheel: Path) -> set[str]:
    """Names that a wheel requires, without its extras."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return {plain(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in wanted if "extra ==" not in each}


if __name__ == "__main__":
    sys.exit(main())
