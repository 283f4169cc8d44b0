"""How much of a batch of pairs is padding: dynamic, eight shapes, fixed; on generated questions and SQL.

    .venv/bin/python benchmarks/padding.py

Batches of 32 in the order of one epoch, of global batches of 256, with a tokenizer trained on the data, as
the recipe text2sql-t5-small has them without files. `multiple`: 1 on CPUs, 8 on GPUs. Counts, no times.
Writes benchmarks/results/padding.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GLOBAL, MICRO, QUESTIONS = 256, 32, 8000


def main() -> None:
    from muster.inputs.read import read_inputs
    from muster.worker.data.sampler import GroupedSampler
    from muster.worker.data.tokenizer import train_tokenizer
    from muster.workloads.seq2seq.shapes import choose_shapes, round_up, shape_of
    from muster.workloads.seq2seq.train import Encoded, alone, data_of, load_pairs, longest

    source = [f"data.generated.train={QUESTIONS}", "data.path=null", "data.name=null"]
    data = data_of(read_inputs("text2sql-t5-small", "local:1", source).recipe)
    with tempfile.TemporaryDirectory() as folder:
        pairs = load_pairs(data, Path(folder), may_write=True, seed=0).train
    texts = [text for pair in pairs for text in (data.prefix + alone(pair), pair.expected)]
    lengths = Encoded(pairs, train_tokenizer(texts, 2048), data).lengths
    order = [lengths[index] for index in GroupedSampler(lengths, GLOBAL, 42)]
    batches = [longest(order[start : start + MICRO]) for start in range(0, len(order), MICRO)]
    real = sum(map(sum, order))

    def padding(shapes: list[tuple[int, int]]) -> dict[str, Any]:
        padded = MICRO * sum(map(sum, shapes))
        return {"share": round(1 - real / padded, 4), "shapes": len(set(shapes))}

    table = {}
    for multiple in (1, 8):
        shapes = choose_shapes(batches, longest(lengths), multiple=multiple)
        table[f"multiple {multiple}"] = {
            "dynamic": padding(
                [(round_up(one, multiple), round_up(other, multiple)) for one, other in batches]
            ),
            "buckets": padding([shape_of(batch, shapes) for batch in batches]),
            "fixed": padding([(data.max_source, data.max_target)] * len(batches)),
        }
    document = {"command": "benchmarks/padding.py", "batches": len(batches), "padding": table}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "padding.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
