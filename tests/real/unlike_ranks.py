"""Two ranks, each with data of its own as on a host of its own: what every workload says before it trains.

To be run by tests/ranks.py with a folder. Prints one line: for each workload what each rank has to say.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.errors import DataError
from muster.core.recipe import recipe_from
from muster.core.registry import load_plugin
from muster.worker.context import Context, read_context
from muster.worker.together import gather, join_group, leave
from tests.images import BLUE, GREEN, RED, png, write_folder

TINY = {"causal-lm": 300, "text2sql": 400}  # entries of a vocabulary


def write(folder: Path, workload: str, rank: int) -> Path:
    """Data that differ in one word, or by one image."""
    word = ("one", "two")[rank]
    if workload == "causal-lm":
        return write_folder(folder, {"text.txt": f"this is text {word}\n".encode() * 100}) / "text.txt"
    if workload == "text2sql":
        rows = [
            {"question": f"number {i} {word if i == 7 else 'all'}", "sql": f"SELECT {i}"} for i in range(40)
        ]
        return write_folder(folder, {"train.jsonl": "".join(json.dumps(r) + "\n" for r in rows).encode()})
    return write_folder(
        folder,
        {f"{i % 2}/{i}.png": png((RED, GREEN, BLUE)[i % 3]) for i in range(20 + rank)},
    )


def context_of(workload: str, folder: Path, rank: int) -> Context:
    """As of a job on two hosts."""
    recipe: Mapping[str, Any] = {
        "workload": workload,
        "model": {"init": "random", **({"vocab_size": TINY[workload]} if workload in TINY else {})},
        "data": {"path": str(write(folder / "data", workload, rank))},
        "launch": {"workdir": str(folder / "work")},
    }
    job = {
        "recipe": recipe_from(recipe).as_dict(),
        "batch": {"micro": 1, "accumulation": 1, "global": 2},
        "precision": "fp32",
        "device": "cpu",
        "attempt": 1,
        "resume_step": None,
        "placements": [{"host": f"node{i}", "first_rank": i, "slots": 1} for i in (0, 1)],
    }
    return read_context({"job": job, "place": str(folder), "base": str(folder), "shared": False})


def main() -> None:
    rank, found = int(os.environ["RANK"]), {}
    for index, workload in enumerate(("causal-lm", "text2sql", "image-classification")):
        folder = Path(sys.argv[1]) / f"rank{rank}" / workload
        folder.mkdir(parents=True)
        context = context_of(workload, folder, rank)
        if not index:
            join_group(context, "gloo")
        try:
            load_plugin("muster.worker.workloads", workload, "train").build(context, {})
            said = "nothing"
        except DataError as error:
            said = str(error)
        found[workload] = gather(said)
    if rank == 0:
        print(json.dumps(found))
    leave()
    sys.stdout.flush()
    os._exit(0)  # as a rank ends: threads of libraries that end in the wrong order undo nothing


if __name__ == "__main__":
    main()
