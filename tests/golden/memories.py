"""What a rank needs to train a model of a published size, and what is offered where that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from muster.core import families
from muster.core.workload import Drawing, HeldModel, Lengths
from muster.planner.memory.fit import MemoryLimit, Setting, fits, lacking, may_run, need
from muster.planner.remedies import OpenChoices, changes, refusal, remedies
from tests.support import setting_with

SMALL = {
    "model_type": "opt", "hidden_size": 4, "ffn_dim": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "vocab_size": 10, "dropout": 0.0,
}  # fmt: skip


def setting_of(size: str | None, *, saves: bool = False, lengths: int = 0, **fields: Any) -> Setting:
    """A size on GPUs of hosts of eight, by ZeRO 2, recomputed; without one 1000 parameters on four GPUs."""
    config = SMALL if size is None else families.size(size) or {}
    count = 1000 if size is None else families.parameters(config) or 0
    usual: dict[str, Any] = {
        "config": config, "parameters": count, "trainable": count, "engine": "deepspeed", "ranks": 4,
        "lengths": Lengths(lengths or 8), "precision": "bf16", "device": "cuda", "ranks_per_host": 4,
        "bucket": 100,
    }  # fmt: skip
    if size is not None:
        usual |= {"ranks": 8, "ranks_per_host": 8, "stage": 2, "checkpointing": True, "bucket": 500_000_000}
        usual["lengths"] = Lengths(lengths or 2048)
    for name, kind in (("drawing", Drawing), ("others", HeldModel)):
        if name in fields:
            given = fields[name]
            fields[name] = tuple(kind(**each) for each in given) if name == "others" else kind(**given)
    return replace(setting_with(**{**usual, **fields}), saves=saves)


def needed(
    size: str | None, room: Sequence[int | None] = (None, None), choices: Any = None, engines: bool = False,
    **fields: Any,
) -> Iterator[str]:  # fmt: skip
    """Bytes of a rank, whether they fit in `room` (device, host), and the overrides that are offered.
    `engines`: ways of the engine and of others that are tried."""
    made, limit = setting_of(size, **fields), MemoryLimit(room[0], room[1], "a GPU of a", "a")
    counted = need(made)
    assert counted is not None
    for place, parts in (("device", counted.device), ("host", counted.host)):
        yield f"{place}: {sum(parts.values())}: {parts}"
    yield f"lacking {lacking(made, limit, counted)}; may run {may_run(made, limit)}, fits {fits(made, limit)}"
    if engines:
        yield from (
            f"{way}: groups of {there.spread.group}"
            for way, there in changes(made)
            if any(key.startswith("engine.") for key in way) and len(way) < 4
        )
    if size is not None and lacking(made, limit) is not None:
        given = dict(choices or {})
        given["fixed"] = frozenset(given.get("fixed", ()))
        ways = remedies(made, limit, size, OpenChoices(**given))
        yield from ways
        refused = refusal(made, limit, size, ways)
        yield f"{refused.what}; hint: {refused.hint}"
