"""Images that one process makes batches of in a second: bytes that the device normalises, beside floats.

    .venv/bin/python benchmarks/images.py [--rounds 20]

Two ways take turns of a few batches each, in changing order, over the same images:
  host       decode, resize, normalise: float32 batches, as loaders made them before
  device     decode, resize: batches of bytes, which the trainer normalises where the model is
Three kinds of images: JPEG photographs of 500 x 375 for 224 x 224 pixels; the same with random flips and
crops; scikit-learn's digits, decoded once and kept. Seconds are the process's own of its core. A ratio is
the median of the rounds' ratios, with their quartiles. Writes benchmarks/results/images.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hardware import processor

RESULTS = Path(__file__).parent / "results"
BATCH, BATCHES = 64, 4  # of a turn
WAYS = ("host", "device")


def photographs(folder: Path, count: int) -> None:
    """JPEG files whose noise is of every size, as that of photographs is, in two classes."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    for index in range(count):
        whole = np.zeros((375, 500, 3))
        for side in (4, 16, 64, 256):
            small = Image.fromarray(numbers.integers(0, 256, (side, side, 3), dtype=np.uint8))
            whole += np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)) / (side**0.5)
        scaled = (255 * whole / whole.max()).astype(np.uint8)
        file = folder / str(index % 2) / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scaled).save(file, quality=90)


def measure(images: Any, rounds: int) -> dict[str, Any]:
    """Both ways, in turn."""
    from muster.workloads.image_classification.images import collate

    def turn(way: str) -> float:
        began = time.process_time()
        for start in range(0, BATCH * BATCHES, BATCH):
            batch = collate([images[(start + i) % len(images)] for i in range(BATCH)])
            if way == "host":
                batch["pixel_values"] = images.preparation.normalise(batch["pixel_values"])
        return time.process_time() - began

    for way in WAYS:
        turn(way)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for index in range(rounds):
        for way in WAYS if index % 2 else WAYS[::-1]:
            seconds[way].append(turn(way))
    count = BATCH * BATCHES
    return {
        "images_per_second": {way: _spread([count / each for each in seconds[way]]) for way in WAYS},
        "device_to_host": _spread([a / b for a, b in zip(*seconds.values(), strict=True)]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"lower_quartile": round(low, 3), "median": round(middle, 3), "upper_quartile": round(high, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    import torch

    from muster.workloads.image_classification.images import Augmentation, ImageSet, Preparation, load_parts
    from muster.workloads.image_classification.spec import Digits, ImageData

    torch.set_num_threads(1)  # as a loader process has it
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder), 80)
        files = load_parts(ImageData(path=folder, validation_fraction=0.1), 0, None).train
        digits = load_parts(ImageData(digits=Digits()), 0, None).train
        large, small = Preparation(224, (0.5,) * 3, (0.5,) * 3), Preparation(8, (0.5,), (0.5,))
        for name, images in {
            "jpeg": ImageSet(files, large),
            "jpeg, flip and crop": ImageSet(files, large, Augmentation(True, 16, 0)),
            "digits": ImageSet(digits, small),
        }.items():
            if name != "digits":
                images.memory = None  # decoded anew, as of a data set that does not fit in it
            table[name] = measure(images, rounds)
            print(name, json.dumps(table[name]), flush=True)
    document = {
        "command": f"benchmarks/images.py --rounds {rounds}",
        "hardware": f"one thread, {processor()}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "pillow")},
        },
        "load_before": round(os.getloadavg()[2], 2),
        "images": table,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "images.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
