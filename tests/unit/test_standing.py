"""Which rank the others wait for, from how each was seen: the witnesses, and where they contradict."""

from __future__ import annotations

from typing import Any

import pytest

from muster.fleet.messages import ProbeAnswer, RankProbe
from muster.fleet.standing import RankState, judge, line_of

TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
ENGINE = "/env/lib/python3.11/site-packages/torch/autograd/graph.py"
IN_ALL_REDUCE = [["all_reduce", TORCH, 3252], ["wrapper", TORCH, 83], ["step", "/home/u/train.py", 12]]
IN_BARRIER = [["barrier", TORCH, 5000], ["step", "/home/u/train.py", 20]]
IN_FSDP = [
    ["_call_impl", "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 1790],
    [
        "forward",
        "/env/lib/python3.11/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py",
        864,
    ],
    ["evaluate", "/home/u/train.py", 40],
]
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


def named(*stands: RankState, stepping: bool = True) -> list[int]:
    verdict = judge(stands, stepping=stepping)
    assert verdict.hangs and verdict.certain, verdict
    return [each.rank for each in verdict.culprits]


LOOPING: dict[str, Any] = {"states": ["R"] * 5, "cpu": 1.0, "own_cpu": 1.0, "library": ""}
STUCK: dict[str, dict[str, Any]] = {
    "sleeps": {"wchan": "hrtimer_nanosleep"},
    "is stopped": {"states": ["T"] * 5, "before": None, "after": None},
    "is in a debugger": {"states": ["t"] * 5, "tracer": "gdb (process 7)"},
    "waits for a disk": {"states": ["D"] * 5, "wchan": "rpc_wait_bit_killable"},
    "loops": LOOPING,
    "loops and holds the interpreter": {**LOOPING, "before": None, "after": None},
    "began an earlier bucket": {"before": calls(4, 4), "after": calls(4, 4)},
}


@pytest.mark.parametrize("how", STUCK)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_rank_that_others_wait_for(how: str, rank: int) -> None:
    stands = [behind(each, **STUCK[how]) if each == rank else seen(each) for each in range(3)]
    assert named(*stands) == [rank]


def test_autograd_waits_for_collectives_without_a_frame_of_theirs() -> None:
    """Under DDP the main thread is in autograd's C++: a victim where its collective is the missed one."""
    backward = [["_engine_run_backward", ENGINE, 840], ["step", "/home/u/train.py", 9]]
    assert named(seen(0, backward), behind(1), seen(2, backward)) == [1]


def test_fsdp_waits_for_what_it_began_before() -> None:
    """It rests in a file of FSDP's own then."""
    unshard = [["wait_for_unshard", IN_FSDP[1][1], 3], *IN_FSDP]
    assert named(seen(0, unshard), behind(1), seen(2, unshard)) == [1]
    assert not judge([seen(each, unshard) for each in range(3)], stepping=True).culprits


def test_a_rank_without_any_stack() -> None:
    """A program that is no Python, or a host where none can be read: the recorder and the kernel are left."""
    assert named(seen(0, []), behind(1, main=[], wchan="pipe_read"), seen(2, [])) == [1]


def test_stacks_alone() -> None:
    """No flight recorder: who is not in a collective while others are."""
    silent = {"before": None, "after": None}
    assert named(seen(0, **silent), seen(1, **silent), behind(2, **silent)) == [2]


def test_a_chain_of_groups_is_followed_to_its_end() -> None:
    """Ranks 0 and 1 share a group of their own, and 1 and 2: 0 waits for 1, which waits for 2."""
    first = seen(0, before=calls(5, 5, group="a"), after=calls(5, 5, group="a"))
    both = [*calls(4, group="a"), *calls(9, 9, group="b")]
    middle = seen(1, before=both, after=both)
    last = behind(2, before=calls(8, group="b"), after=calls(8, group="b"))
    assert named(first, middle, last) == [2]


def test_a_process_that_is_gone() -> None:
    assert named(seen(0), seen(1), RankState(2, "node2", None)) == [2]


def test_a_loader_worker_that_is_stopped() -> None:
    stuck = behind(1, stopped=[{"pid": 7, "state": "T", "name": "pt_data_worker"}], wchan="poll_schedule")
    verdict = judge([seen(0), stuck], stepping=True)
    assert [each.rank for each in verdict.culprits] == [1]
    assert "pt_data_worker" in verdict.what


def test_different_collectives_are_a_bug_of_the_program() -> None:
    """Both lines are told; the one that is alone against many is named, one of two is not."""
    other = seen(
        2, IN_BARRIER, before=calls(5, 5, name="gloo:barrier"), after=calls(5, 5, name="gloo:barrier")
    )
    verdict = judge([seen(0), seen(1), other], stepping=True)
    assert verdict.hangs and [each.rank for each in verdict.culprits] == [2]
    assert "train.py:12" in verdict.what and "train.py:20" in verdict.what
    two = judge([seen(0), other], stepping=True)
    assert two.hangs and not two.certain and not two.culprits


def test_the_same_operation_of_another_size() -> None:
    other = seen(1, before=calls(5, 5, sizes=((8,),)), after=calls(5, 5, sizes=((8,),)))
    verdict = judge([seen(0), other, seen(2)], stepping=True)
    assert [each.rank for each in verdict.culprits] == [1]


def test_the_same_operation_from_two_lines_matches() -> None:
    """One rank comes to it by another way."""
    verdict = judge([seen(0), seen(1, IN_BARRIER)], stepping=True)
    assert verdict.hangs and not verdict.culprits and "different" not in verdict.what


def test_a_rank_whose_stack_cannot_be_read_has_its_collective_still() -> None:
    blind = seen(1, [], before=calls(5, 5, name="gloo:barrier"), after=calls(5, 5, name="gloo:barrier"))
    verdict = judge([seen(0), blind, seen(2)], stepping=True)
    assert [each.rank for each in verdict.culprits] == [1]


def test_all_wait_in_the_same_collective() -> None:
    """Nothing arrives: no rank is to blame."""
    verdict = judge([seen(0), seen(1), seen(2)], stepping=True)
    assert verdict.hangs and not verdict.culprits and not verdict.certain


def linked(rank: int, *silent: int, **fields: Any) -> RankState:
    """A rank that waits, and has sent to these ranks' hosts without an answer."""
    ends = [(f"10.0.0.{rank}", f"10.0.0.{other}") for other in silent]
    return seen(rank, addresses=[f"10.0.0.{rank}"], silent=ends, **fields)


def probes(**unreached: list[int]) -> dict[str, ProbeAnswer]:
    """Of each host those that it does not reach; all others it does."""
    found = {}
    for host, numbers in unreached.items():
        answers = [f"10.0.0.{other}" for other in range(3) if other not in numbers]
        told = {"m": "looked", "number": 1, "ranks": [], "xid": [], "reached": answers}
        found[host] = ProbeAnswer.model_validate(
            {**told, "unreached": [f"10.0.0.{each}" for each in numbers]}
        )
    return found


def test_a_host_that_is_cut_from_the_others() -> None:
    """All wait, and what is sent to one host, or by it, is not answered: the host, and none of the ranks."""
    verdict = judge([linked(0, 1), linked(1, 2), linked(2)], stepping=True)
    assert (verdict.hosts, verdict.certain, verdict.culprits) == (("node1",), True, ())
    assert "node1 and node0, node2" in verdict.what
    elsewhere = judge([linked(0, 9), linked(1, 9), linked(2)], stepping=True)  # nobody there has said a word
    assert (elsewhere.hosts, elsewhere.certain) == (("10.0.0.9",), True)


def test_a_link_that_is_cut() -> None:
    verdict = judge([linked(0, 1), linked(1), linked(2)], stepping=True)
    assert (verdict.hosts, verdict.certain) == (("node0", "node1"), False)
    several = judge([linked(0, 1), linked(1), linked(2, 3), linked(3)], stepping=True)
    assert several.hangs and not several.hosts and "node2 and node3" in several.what


def test_who_else_is_not_reached_tells_the_host_from_the_link() -> None:
    """Data were on their way between two alone, since a small all-reduce does not use each link."""
    stands = [linked(0, 1), linked(1), linked(2)]
    cut = judge(stands, stepping=True, looks=probes(node0=[1], node1=[0, 2], node2=[1]))
    assert (cut.hosts, cut.certain) == (("node1",), True)
    link = judge(stands, stepping=True, looks=probes(node0=[1], node1=[0], node2=[]))
    assert (link.hosts, link.certain) == (("node0", "node1"), False)
    walled = judge(stands, stepping=True, looks=probes(node0=[0, 1, 2], node1=[0, 1, 2], node2=[0, 1, 2]))
    assert walled.hosts == ("node0", "node1")


def test_a_dead_link_and_a_rank_that_sleeps() -> None:
    """Both would explain it: nobody for certain."""
    asleep = behind(2, addresses=["10.0.0.2"], wchan="hrtimer_nanosleep")
    verdict = judge([linked(0, 1), linked(1, 0), asleep], stepping=True)
    assert verdict.hangs and not verdict.certain and "disagree" in verdict.what
    reads = linked(1, main=[["recv", "/home/u/wire.py", 3]], wchan="sk_wait_data")
    assert judge([linked(0, 1), reads, linked(2, 1)], stepping=True).certain


def test_a_link_that_is_down_while_a_rank_computes() -> None:
    busy = linked(2, main=SLEEPING, **{**LOOPING, "library": "libtorch_cpu.so"})
    assert not judge([linked(0, 1), linked(1), busy], stepping=True).hangs


def test_a_rank_that_skipped_a_collective_of_another_group() -> None:
    """Others wait for it there, and it for them in the next one: of two against one, the one."""
    both = [*calls(4, group="gloo 0"), *calls(1, 1, group="gloo 1")]
    unused = {"group": "* 1", "last": 0, "calls": []}  # it would have been the first one there
    other = [*calls(5, 5, group="gloo 0"), unused]
    most = [seen(rank, before=both, after=both) for rank in (0, 2)]
    skipped = seen(1, IN_BARRIER, before=other, after=other)
    assert named(most[0], skipped, most[1]) == [1]
    two = judge([most[0], skipped], stepping=True)
    assert two.hangs and not two.culprits and not two.certain


def test_witnesses_that_contradict_each_other_name_nobody_for_certain() -> None:
    """Rank 1 is in a collective by its stack, and the recorder misses it; rank 2 is in none by its stack, and
    the recorder says that it came."""
    outside, missed = seen(2, SLEEPING), seen(1, before=calls(4), after=calls(4))
    verdict = judge([seen(0), missed, outside], stepping=True)
    assert verdict.hangs and not verdict.certain
    assert "rank 1" in " ".join(verdict.witnesses) and "rank 2" in verdict.what


def test_one_is_stopped_and_another_one_sleeps() -> None:
    stopped = behind(1, **STUCK["is stopped"])
    verdict = judge([seen(0), stopped, behind(2)], stepping=True)
    assert verdict.hangs and not verdict.certain


COMPUTING = [[["forward", f"/home/u/net{n}.py", n], ["step", "/home/u/train.py", 9]] for n in range(5)]


@pytest.mark.parametrize(
    "fields",
    [
        {**LOOPING, "mains": COMPUTING},
        {"io": 1 << 20, "states": ["D"] * 5},  # a long checkpoint
        {**LOOPING, "mains": [[]] * 5},  # at its start or its end
        {**LOOPING, "library": "libcuda.so.570"},  # waits for its GPU in one line
        {**LOOPING, "library": None},  # the same where no program reads native stacks
        {"mains": [[["forward", "/home/u/net.py", 3], *IN_FSDP]] * 5, **LOOPING, "library": None},
        {"cpu": 0.9, "own_cpu": 0.01},  # a loader's workers
        {"states": ["R", "S", "R", "R", "R"], "own_cpu": 0.01, "wants": 0.9},  # others have the processors
        {"wants_below": 0.9},
        {"states": [], "mains": []},  # it could not be looked at in time
        {**LOOPING, "functions": 7},  # of which the few looks saw two
        {"states": ["R", "R", "S", None, None], "mains": [[]] * 5, "own_cpu": -1.7},
        {"states": ["D"] * 5, "disk_moves": True, "wchan": "folio_wait_bit"},  # fsync
        {"states": ["D", "S", "D", "D", "R"]},  # it is paged in
    ],
    ids=[
        "an evaluation",
        "a checkpoint",
        "no interpreter yet",
        "on the GPU",
        "no native stack",
        "within FSDP",
        "its children",
        "starved",
        "its starved children",
        "not seen",
        "many functions",
        "ended meanwhile",
        "a slow disk",
        "memory from a disk",
    ],
)
def test_what_goes_on_is_no_hang(fields: dict[str, Any]) -> None:
    fields = dict(fields)
    mains = fields.pop("mains", None)
    busy = behind(1, **fields)
    if mains is not None and busy.look is not None:
        busy = RankState(1, "node1", busy.look.model_copy(update={"mains": mains}))
    assert not judge([seen(0), busy, seen(2)], stepping=True).hangs


def test_a_first_step_may_compile_for_long() -> None:
    looping = behind(1, **LOOPING)
    assert not judge([seen(0), looping], stepping=False).hangs
    assert judge([seen(0), looping], stepping=True).hangs


def test_who_works_and_does_not_answer_may_keep_the_others() -> None:
    """Rank 0 loads a model in native code, rank 1 waits for its lock of the files, rank 2 in a barrier."""
    loads = behind(0, **{**LOOPING, "library": "tokenizers.so"}, before=None, after=None)
    assert not judge([loads, behind(1, wchan="hrtimer_nanosleep"), seen(2)], stepping=True).hangs


@pytest.mark.parametrize("state", ["t", "T"])
def test_a_rank_that_is_held_where_it_waits(state: str) -> None:
    """By its stack it is in the collective as all are; the kernel knows better."""
    assert named(seen(0), seen(1, states=[state] * 5), seen(2)) == [1]


def test_who_is_watched_by_another_program_is_not_held_by_it() -> None:
    """strace at a rank that waits for another one."""
    assert named(seen(0, tracer="strace (process 7)"), behind(1), seen(2)) == [1]


def test_a_program_that_another_one_works_for() -> None:
    """An evaluation in a child process."""
    assert not judge([seen(0), behind(1, cpu=1.0, own_cpu=0.0), seen(2)], stepping=True).hangs


def queued(rank: int, started: bool) -> RankState:
    """A rank whose main thread waits for its GPU, on which collective 5 has begun, or not."""
    told = calls(5, 5, name="nccl:all_reduce")
    told[0]["calls"][0]["started"] = started
    main = [["step", "/home/u/train.py", 12]]
    return seen(rank, main, before=told, after=told, cpu=1.0, own_cpu=1.0, library="libcuda.so.1")


def test_a_gpu_that_has_not_come_to_the_collective() -> None:
    """All ranks have queued it, and wait in CUDA: NCCL's entries say on whose GPU it has begun."""
    assert named(queued(0, True), queued(1, False), queued(2, True)) == [1]


def test_all_compute_within_fsdp() -> None:
    """An evaluation, where nothing says which collectives there are."""
    stack = [["linear", "/env/lib/python3.11/site-packages/torch/nn/functional.py", 9], *IN_FSDP]
    silent = {**LOOPING, "library": None, "before": None, "after": None}
    assert not judge([seen(each, stack, **silent) for each in range(3)], stepping=True).hangs


def on_gpu(rank: int, *, before: Any = None, **fields: Any) -> RankState:
    """A rank that waits for its GPU in a line of its own, with NCCL's collective 5 before it."""
    pending = calls(6, 5, 6, name="nccl:all_reduce")
    told = {**LOOPING, "library": None, "before": before or pending, "after": pending, **fields}
    return seen(rank, [["step", "/home/u/train.py", 33]], **told)


def test_all_wait_for_their_gpus() -> None:
    """The main threads of all ranks spin in the driver: the same collective is pending, and does not end."""
    verdict = judge([on_gpu(0), on_gpu(1), on_gpu(2, library="libcuda.so.570")], stepping=True)
    assert verdict.hangs and not verdict.culprits and "train.py:33" in verdict.what
    assert named(on_gpu(0), behind(1, before=calls(4, name="nccl:x"), after=calls(4, name="nccl:x"))) == [1]


def test_gpus_that_still_work_off_what_was_begun() -> None:
    """Nothing new is begun, and what was pending ends."""
    earlier = calls(6, 4, 5, 6, name="nccl:all_reduce")
    assert not judge([on_gpu(0, before=earlier), on_gpu(1)], stepping=True).hangs


def test_what_is_sent_goes_on() -> None:
    """A pipeline's stages, of which every look sees each in a call of torch.distributed."""
    before, after = ([{**calls(5, 5)[0], "p2p": number}] for number in (7, 9))
    assert not judge([seen(0, before=before, after=after), seen(1)], stepping=True).hangs


def test_groups_of_their_own_have_collectives_of_their_own() -> None:
    """Ranks 0 to 2 share one, 3 and 4 another: what is waited for in each need not be the same."""
    one, other = calls(5, 5, group="a"), calls(9, 9, group="b", name="gloo:all_gather")
    stands = [seen(rank, before=one, after=one) for rank in range(3)]
    stands += [seen(rank, IN_BARRIER, before=other, after=other) for rank in (3, 4)]
    verdict = judge(stands, stepping=True)
    assert verdict.hangs and not verdict.culprits and not verdict.certain
    assert "train.py:12" in verdict.what and "train.py:20" in verdict.what


def test_a_receive_that_nobody_sends_for() -> None:
    """By the recorder that rank is missed, by its stack it waits: both lines are told."""
    receives = behind(1, main=[["recv", TORCH, 2600], ["pull", "/home/u/pipe.py", 4]])
    verdict = judge([seen(0), receives], stepping=True)
    assert verdict.hangs and not verdict.certain
    assert "pipe.py:4" in verdict.what and "train.py:12" in verdict.what


def test_collectives_that_go_on() -> None:
    """Many small ones: each look sees the ranks inside one."""
    assert not judge([seen(0, after=calls(9, 9)), seen(1)], stepping=True).hangs


def test_a_server_that_waits_is_no_hang() -> None:
    """Nothing shows that anybody waits for it, and no steps were ever told."""
    idle = [behind(rank, before=None, after=None) for rank in range(3)]
    assert not judge(idle, stepping=False).hangs


def test_a_single_rank_that_made_steps() -> None:
    assert named(behind(0, before=None, after=None)) == [0]


def test_the_last_one_that_is_there() -> None:
    """The others have ended, as it is usual: nobody waits for them."""
    alone = behind(0, before=None, after=None)
    assert named(alone, RankState(1, "node1", None), RankState(2, "node2", None)) == [0]
    assert not judge([RankState(1, "node1", None)], stepping=True).hangs


def test_the_line_that_is_told_is_the_users() -> None:
    assert line_of([tuple(each) for each in IN_ALL_REDUCE]) == "step (train.py:12)"  # type: ignore[misc]
    library = [("next", "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 7)]
    assert line_of(library) == "next (dataloader.py:7)"
