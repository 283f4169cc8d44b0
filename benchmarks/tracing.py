"""What a trace costs before a plan: seconds from the request to the figures, of large models.

    .venv/bin/python benchmarks/tracing.py [--times 3]

Each is traced as `muster plan` does it, in a process of its own, with PyTorch and Transformers imported anew
and nothing remembered. Writes benchmarks/results/tracing.json; exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hardware import processor, stolen, ticks

from muster.core.recipes import load_recipe
from muster.inputs.model import whole_config
from muster.planner.tracing import request_of, trace

RESULTS = Path(__file__).parent / "results"
# name: recipe, overrides, precision, the most seconds that it may take on two cores
MODELS: dict[str, tuple[str, list[str], str, float]] = {
    "T5-large": ("text2sql-t5-large", [], "fp32", 15),
    "OPT-175B": ("opt-benchmark", ["model.name=opt-175b"], "bf16", 60),
}


def seconds_of(recipe: str, overrides: list[str], precision: str) -> float:
    """Of one trace, from the request to its figures."""
    read = load_recipe(recipe, overrides)
    request = request_of(read, whole_config(read), precision=precision, device="cuda", ranks=8)
    assert request is not None
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = trace(request, cache=Path(folder))
        taken = time.perf_counter() - begun
    assert found is not None and found.passes
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    before = ticks()
    for name, (recipe, overrides, precision, bar) in MODELS.items():
        taken = [seconds_of(recipe, overrides, precision) for _ in range(options.times)]
        rows.append({"model": name, "seconds": taken, "bar": bar, "within": max(taken) <= bar})
        print(f"{name}: median {statistics.median(taken):.1f} s, at most {max(taken):.1f} s; bar {bar:g} s")
    document = {
        "rows": rows, "processor": processor(), "stolen": stolen(before), "python": platform.python_version(),
        "versions": {each: version(each) for each in ("torch", "transformers")},
    }  # fmt: skip
    (RESULTS / "tracing.json").write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
