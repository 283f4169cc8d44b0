"""What holds for any suite on any hosts: no host in two jobs at a time, every host covered, all jobs run."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.benches.schedule import (
    RING,
    Task,
    groups_of,
    make_schedule,
    rounds,
    sizes_of,
    startable,
    warmed_again,
)
from muster.benches.suite import Suite
from tests.unit.benches import suite_of

QUICK = settings(max_examples=80, deadline=None)
SIZES = st.one_of(
    st.lists(st.one_of(st.integers(1, 9), st.just("all")), min_size=1, max_size=4), st.just("doubling")
)


@st.composite
def suites(draw: st.DrawFn) -> Suite:
    """One to three entries of any sizes, repeats, with and without a warm-up."""
    jobs = [
        {
            "name": f"e{number}",
            "groups": draw(SIZES),
            "repeats": draw(st.integers(1, 3)),
            "cover": draw(st.sampled_from(["all", "first"])),
            "warm_up": draw(st.booleans()),
        }
        for number in range(draw(st.integers(1, 3)))
    ]
    return suite_of(*jobs)


HOSTS = st.integers(1, 20).map(lambda count: tuple(f"h{number}" for number in range(count)))
AT_ONCE = st.one_of(st.none(), st.integers(1, 5))


@QUICK
@given(HOSTS, st.data())
def test_groups_cover_every_host_once_but_for_the_last(hosts: tuple[str, ...], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(hosts)))
    groups = groups_of(hosts, size)
    assert all(len(group.hosts) == size == len(set(group.hosts)) for group in groups)
    assert {host for group in groups for host in group.hosts} == set(hosts)
    if size == 2 and len(hosts) <= RING:
        return
    plain = [host for group in groups for host in group.hosts if not group.leftover]
    assert len(plain) == len(set(plain))
    assert len(groups) == -(-len(hosts) // size)
    last = groups[-1]
    assert set(last.leftover) == (set(hosts) - set(plain) if last.leftover else set())
    assert set(last.again) | set(last.leftover) == (set(last.hosts) if last.leftover else set())


def test_pairs_of_few_hosts_are_the_links_of_their_ring() -> None:
    for count in range(3, RING + 1):
        hosts = [f"h{number}" for number in range(count)]
        links = {frozenset((hosts[at], hosts[(at + 1) % count])) for at in range(count)}
        groups = groups_of(hosts, 2)
        assert {frozenset(group.hosts) for group in groups} == links and len(groups) == count
    assert len(groups_of(["a", "b"], 2)) == 1


@QUICK
@given(suites(), HOSTS)
def test_every_host_has_its_job_of_every_size(suite: Suite, hosts: tuple[str, ...]) -> None:
    schedule = make_schedule(suite, hosts)
    assert schedule == make_schedule(suite, hosts)
    assert len({task.id for task in schedule.tasks}) == len(schedule.tasks)
    for entry in suite.jobs:
        held = suite.of(entry)
        own = [task for task in schedule.tasks if task.entry == entry.name and not task.warm_up]
        sizes, missing = sizes_of(held.groups, len(hosts))
        assert {len(task.hosts) for task in own} == set(sizes)
        assert bool(missing) == any(f"{entry.name}: no group of" in note for note in schedule.notes)
        for size in sizes:
            for repeat in range(1, held.repeats + 1):
                of_size = [task for task in own if len(task.hosts) == size and task.repeat == repeat]
                covered = {host for task in of_size for host in task.hosts}
                assert covered == (set(hosts[:size]) if held.cover == "first" else set(hosts))


@QUICK
@given(suites(), HOSTS, AT_ONCE, st.randoms(use_true_random=False))
def test_no_host_is_in_two_jobs_and_all_jobs_run(
    suite: Suite, hosts: tuple[str, ...], at_once: int | None, chance: object
) -> None:
    """Jobs end in any order."""
    tasks = make_schedule(suite, hosts).tasks
    done: set[str] = set()
    running: list[Task] = []
    while True:
        begun = startable(tasks, done, running, at_once)
        running += begun
        members = [host for task in running for host in task.hosts]
        assert len(members) == len(set(members))
        assert at_once is None or len(running) <= at_once
        assert all(set(task.after) <= done for task in begun)
        if not running:
            break
        over = running.pop(chance.randrange(len(running)))  # type: ignore[attr-defined]
        assert over.id not in done
        done.add(over.id)
    assert done == {task.id for task in tasks}


@QUICK
@given(suites(), HOSTS, AT_ONCE)
def test_a_warm_up_is_over_before_any_other_job_of_its_entry(
    suite: Suite, hosts: tuple[str, ...], at_once: int | None
) -> None:
    tasks = make_schedule(suite, hosts).tasks
    waves = rounds(tasks, at_once)
    at = {task.id: number for number, wave in enumerate(waves) for task in wave}
    assert len(at) == len(tasks)
    for entry in suite.jobs:
        leads = [task for task in tasks if task.entry == entry.name and task.warm_up]
        others = [task for task in tasks if task.entry == entry.name and not task.warm_up]
        beside = any(set(one.hosts).isdisjoint(other.hosts) for one in others for other in others)
        assert len(leads) == (suite.of(entry).warm_up and beside)
        assert all(at[other.id] > at[lead.id] for lead in leads for other in others)


@QUICK
@given(suites(), HOSTS, AT_ONCE, st.data())
def test_jobs_wait_for_a_warm_up_that_ended_well(
    suite: Suite, hosts: tuple[str, ...], at_once: int | None, data: st.DataObject
) -> None:
    """Any of them may fail: another is made on hosts that no failed one was on, three at most."""
    tasks = list(make_schedule(suite, hosts).tasks)
    dead = data.draw(st.sets(st.sampled_from(hosts)))
    done: set[str] = set()
    failed: set[str] = set()
    while True:
        tasks, notes = warmed_again(tasks, failed)
        begun = startable(tasks, done, (), at_once)
        if not begun:
            break
        for task in begun:
            leads = [each for each in tasks if each.warm_up and each.entry == task.entry]
            if leads and not task.warm_up and leads[-1].id in failed:
                assert len(leads) == 3 or {host for lead in leads for host in lead.hosts} & set(task.hosts)
                assert any(note.startswith(f"{task.entry}: ") for note in notes)
        done |= {task.id for task in begun}
        failed |= {task.id for task in begun if task.warm_up and dead & set(task.hosts)}
    assert done == {task.id for task in tasks}
    assert len({task.id for task in tasks}) == len(tasks)
    for entry in suite.jobs:
        tried = [host for task in tasks if task.entry == entry.name and task.warm_up for host in task.hosts]
        assert len(tried) == len(set(tried))
