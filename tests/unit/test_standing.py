"""Which rank the others wait for, from how each was seen: the witnesses, and where they contradict."""

from __future__ import annotations

from typing import Any

from muster.fleet.messages import RankProbe
from muster.fleet.standing import RankState, line_of

TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_ALL_REDUCE = [["all_reduce", TORCH, 3252], ["wrapper", TORCH, 83], ["step", "/home/u/train.py", 12]]
SLEEPING = [["fetch", "/home/u/data.py", 7], ["step", "/home/u/train.py", 9]]


def calls(
    last: int, *pending: int, name: str = "gloo:all_reduce", group: str = "0", sizes: Any = ((4,),)
) -> Any:
    found = [{"number": each, "name": name, "sizes": sizes, "pending": True} for each in pending]
    done = [{"number": last, "name": name, "sizes": sizes, "pending": False}]
    return [{"group": group, "last": last, "calls": found or done}]


def seen(rank: int, main: Any = IN_ALL_REDUCE, **fields: Any) -> RankState:
    """A rank that waits in collective 5, but for what is said."""
    told: dict[str, Any] = {
        "rank": rank, "pid": 100 + rank, "states": ["S"] * 5, "cpu": 0.0, "own_cpu": 0.0, "io": 0,
        "wchan": "futex_do_wait", "tracer": None, "mains": [main] * 5, "others": [], "stopped": [],
        "before": calls(5, 5), "after": calls(5, 5), **fields,
    }  # fmt: skip
    return RankState(rank, f"node{rank}", RankProbe.model_validate(told))


def behind(rank: int, **fields: Any) -> RankState:
    """A rank that has not come to collective 5."""
    return seen(rank, **{"main": SLEEPING, "before": calls(4), "after": calls(4), **fields})


def linked(rank: int, *silent: int, **fields: Any) -> RankState:
    """A rank that waits, and has sent to these ranks' hosts without an answer."""
    ends = [(f"10.0.0.{rank}", f"10.0.0.{other}") for other in silent]
    return seen(rank, addresses=[f"10.0.0.{rank}"], silent=ends, **fields)


def test_the_line_that_is_told_is_the_users() -> None:
    assert line_of([tuple(each) for each in IN_ALL_REDUCE]) == "step (train.py:12)"  # type: ignore[misc]
    library = [("next", "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 7)]
    assert line_of(library) == "next (dataloader.py:7)"
