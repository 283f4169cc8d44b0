"""Which piece of the GPU kit is run when, and which code each rests on."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import calls, schedule, sources
from benchmarks.gpu.kit import GROUPS, ROOT, Piece, Results, every_result
from benchmarks.gpu.pieces import pieces
from benchmarks.gpu.schedule import Room

ROOM = Room(lanes=3, gigabytes=24.0)


def piece(key: str, usual: float = 10.0, **more: Any) -> Piece:
    group, _, name = key.partition("/")
    return Piece(group, name, 2 * usual, lambda machine: {}, usual, **more)


def shared(key: str, usual: float = 10.0, **more: Any) -> Piece:
    return piece(key, usual, shared=True, **more)


def begun(every: list[Piece], seconds: float, room: Room = ROOM) -> tuple[dict[str, float], list[str]]:
    """When each begins, and what is left over."""
    times, left = schedule.rehearsed(every, seconds, room, lambda each: each.usual)
    return {each.key: at for at, each in times}, [each.key for each in left]


WEIGHTY = [shared("proof/a", gigabytes=14), shared("proof/b", gigabytes=14), shared("proof/c")]
READING = [shared("proof/base"), shared("proof/a", after="base"), shared("proof/b")]
LONG = [piece("speed/a", 60), piece("speed/b", 50), piece("speed/c", 30), piece("speed/d", 20)]


@pytest.mark.parametrize(
    ("every", "expected", "left"),
    [
        pytest.param(
            [piece("proof/a"), *(shared(f"proof/{name}") for name in "bcde"), piece("proof/f")],
            {"proof/a": 0, "proof/b": 10, "proof/c": 10, "proof/d": 10, "proof/e": 20, "proof/f": 30},
            [],
            id="what is timed is alone and the rest shares",
        ),
        pytest.param(
            [shared("proof/a", 30), piece("speed/b"), shared("memory/c", 5)],
            {"proof/a": 0, "speed/b": 30, "memory/c": 40},
            [],
            id="while the machine empties for a piece that is alone no later one begins",
        ),
        pytest.param(
            LONG, {"speed/a": 0, "speed/c": 60}, ["speed/b", "speed/d"],
            id="what does not fit the time left waits for the next call",
        ),
        pytest.param(LONG[1::2], {"speed/b": 0, "speed/d": 50}, [], id="which begins with it"),
        pytest.param(WEIGHTY, {"proof/a": 0, "proof/c": 0, "proof/b": 10}, [], id="they fit into memory"),
        pytest.param([shared("proof/a", gigabytes=99)], {"proof/a": 0}, [], id="too large: nothing helps"),
        pytest.param(READING, {"proof/base": 0, "proof/b": 0, "proof/a": 10}, [], id="a reads base"),
        pytest.param(READING[1:], {"proof/a": 0, "proof/b": 0}, [], id="base came to its end before"),
        pytest.param(
            [shared("proof/base", 200), *READING[1:]], {"proof/a": 0, "proof/b": 0}, ["proof/base"],
            id="base is not run at all",
        ),
    ],
)  # fmt: skip
def test_when_pieces_begin(every: list[Piece], expected: dict[str, float], left: list[str]) -> None:
    assert begun(every, 100) == (expected, left)


def test_nothing_begins_beside_a_piece_that_is_alone() -> None:
    waiting = [shared("proof/b"), piece("speed/c")]
    assert schedule.startable(waiting, [piece("speed/a")], 100, ROOM, lambda each: each.usual) == []


def test_without_times_all_share_and_none_is_too_long() -> None:
    tiny = Room(lanes=2, gigabytes=math.inf, timed=False)
    times, left = begun([piece("proof/a", 500), piece("proof/b", 10), piece("proof/c", 10)], 20, tiny)
    assert times == {"proof/a": 0, "proof/b": 0, "proof/c": 10} and not left


def entry(status: str, source: str = "code") -> dict[str, Any]:
    return {"status": status, "source": source, "seconds": 5.0}


@pytest.mark.parametrize(
    ("before", "usually", "changed"),
    [
        (None, True, True),
        (entry("passed"), False, False),
        (entry("passed", "old"), False, True),
        (entry("not applicable", "old"), False, True),
        (entry("failed"), False, True),
        (entry("failed", "old"), True, True),
        (entry("timed out"), False, True),
        (entry("cut short"), True, True),
    ],
)
def test_what_is_run_again(before: dict[str, Any] | None, usually: bool, changed: bool) -> None:
    assert schedule.wanted(before, "code", False) == usually
    assert schedule.wanted(before, "code", True) == changed


def test_proof_comes_first_until_all_of_it_came_to_an_end_with_this_code() -> None:
    every = [piece("speed/a"), piece("proof/b"), piece("profile/c"), piece("proof/d")]
    codes = {each.key: "code" for each in every}

    def order(**entries: Any) -> list[str]:
        before = {f"proof/{name}": one for name, one in entries.items()}
        return [each.name for each in schedule.in_order(every, schedule.proven(every, before, codes))]

    assert order() == order(b=entry("passed")) == ["b", "d", "a", "c"]
    assert order(b=entry("passed"), d=entry("passed", "old")) == ["b", "d", "a", "c"]
    assert order(b=entry("passed"), d=entry("cut short")) == ["b", "d", "a", "c"]
    for ended in ("not applicable", "failed", "timed out"):
        assert order(b=entry("passed"), d=entry(ended)) == ["a", "c", "b", "d"]


def test_a_row_is_measured_in_all_ways_before_the_next_row() -> None:
    rows = [piece(f"{group}/{n}") for group in ("speed", "cost", "profile", "levers") for n in (1, 2)]
    keys = [each.key for each in schedule.in_order(rows, proof_last=True)]
    first, second = ([f"{group}/{n}" for group in ("speed", "profile", "levers")] for n in (1, 2))
    assert keys == [*first, *second, "cost/1", "cost/2"]


def test_what_was_measured_keeps_its_place_in_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second profile does not come before the second speed because the first profile is there."""
    monkeypatch.setattr(calls, "source", lambda each: "code")
    rows = [piece(f"{group}/{n}") for group in ("speed", "profile") for n in (1, 2)]
    results = Results(tmp_path)
    results.add(rows[2], {}, entry("passed"))
    waiting = calls.waiting_of(rows, results, changed=True)
    assert [each.key for each in waiting] == ["speed/1", "speed/2", "profile/2"]


def test_a_piece_takes_what_it_took() -> None:
    """The first place that has it counts; a failure says nothing of how long it takes."""

    class Before(Results):
        def __init__(self, **entries: Any) -> None:
            self.before = {f"proof/{name}": one for name, one in entries.items()}

        def entries(self, pieces: Any) -> Any:
            return self.before

    here = Before(a=entry("passed") | {"seconds": 7.0}, b=entry("failed"))
    there = Before(a=entry("passed"), b=entry("passed"))
    every = [piece(f"proof/{name}", 50) for name in "abc"]
    assert calls.usual_seconds(every, [here, there]) == {"proof/a": 7.0, "proof/b": 5.0, "proof/c": 50.0}


def test_a_call_proves_what_matters() -> None:
    """As long as pieces take as long as on the H100 that was measured."""
    every = [each for each in pieces() if each.group == "proof"]
    seconds = calls.usual_seconds(every, every_result(calls.MEASURED))
    room = calls.room_of({"cores": 16, "memory": 85.5e9}, tiny=False)
    for minutes, over in ((6, {"grpo", "ppo", "dpo"}), (7, set())):
        times, left = schedule.rehearsed(every, 60 * minutes, room, lambda each: seconds[each.key])
        assert {each.name for each in left} <= over and len(times) + len(left) == len(every)
    assert {each.name for each in every if not each.shared} == {"check", "clock", "fabric"}


# --- which code a piece rests on ---------------------------------------------------------------------------


def parts_of(key: str) -> set[str]:
    """Files below src/muster, as text."""
    one = next(each for each in pieces() if each.key == key)
    return {str(file.relative_to(ROOT)) for file in sources.files(one)}


def test_a_piece_rests_on_the_code_that_it_runs() -> None:
    ddp, zero, check = (parts_of(f"proof/{name}") for name in ("ddp-bf16", "zero2-bf16", "check"))
    common = {"src/muster/worker/main.py", "src/muster/runs/train.py", "benchmarks/gpu/jobs.py"}
    common |= {"src/muster/engines/base.py", "src/muster/workloads/__init__.py"}
    common |= {"src/muster/recipes/gpt2-small.yaml"}
    assert all(common <= each for each in (ddp, zero, check))
    runtime = {name: f"src/muster/engines/{name}/runtime.py" for name in ("ddp", "deepspeed", "fsdp")}
    assert runtime["ddp"] in ddp and not {runtime["deepspeed"], runtime["fsdp"]} & ddp
    assert runtime["deepspeed"] in zero and runtime["ddp"] not in zero
    family = "src/muster/checks/families/gpu.py"
    assert family in check and family not in ddp
    assert "src/muster/workloads/causal_lm/train.py" in ddp
    assert "src/muster/workloads/ppo/train.py" not in ddp
    own = {"benchmarks/gpu/levers.py", "benchmarks/gpu/jobs.py"}
    assert parts_of("levers/gpt2-124m") == own | {"src/muster/worker/arithmetic.py"}  # its cast of weights
    assert {"benchmarks/gpu/speed.py", "benchmarks/gpu/peers.py"} <= parts_of("speed/gpt2-124m")
    assert "benchmarks/gpu/kit.py" not in parts_of("speed/gpt2-124m")


def test_a_piece_rests_on_every_module_of_the_kit_that_its_own_imports() -> None:
    for each in [each for each in pieces() if each.parts is not None]:
        own = Path(f"benchmarks/gpu/{each.group}.py")
        imported: set[str] = set()
        for node in ast.walk(ast.parse((ROOT / own).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks"):
                imported |= {f"{node.module}.{name.name}" for name in node.names} | {str(node.module)}
        files = {f"{name.replace('.', '/')}.py" for name in imported - {"benchmarks.gpu.kit"}}
        assert {file for file in files if (ROOT / file).exists()} <= parts_of(each.key), each.key


def test_every_part_that_a_piece_names_is_there() -> None:
    parts = {part for each in pieces() for part in each.parts or ()} - {"*"}
    assert not [part for part in parts if not ((ROOT / part).is_file() or (sources.MUSTER / part).is_dir())]


def test_a_digest_changes_with_the_code_that_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name for name in ("a.py", "b.py")}
    for file in files.values():
        file.write_text("one")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "_content", Path.read_bytes)
    monkeypatch.setattr(sources, "files", lambda each: [files[each.name]])
    before = [sources.source(shared(f"proof/{name}")) for name in files]
    assert before[0] != before[1]  # a name counts as well
    files["a.py"].write_text("two")
    after = [sources.source(shared(f"proof/{name}")) for name in files]
    assert after[0] != before[0] and after[1] == before[1]


def test_a_run_imports_none_of_the_rooms_apart() -> None:
    code = (
        "import sys, muster.runs.train, muster.runs.resume, muster.cli.train, muster.cli.resume\n"
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('muster.')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & set(sources.APART)
    assert set(GROUPS) >= {each.group for each in pieces()}
