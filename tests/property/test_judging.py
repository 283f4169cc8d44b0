"""What holds for any fleet: waves are disjoint, units do not matter, good hosts are not accused."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulate import Planted, SimulatedFleet, hunt

from muster.judging import Observation, Topology, judge, localise, next_wave

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def fleets(draw: st.DrawFn) -> SimulatedFleet:
    """4 to 24 hosts, behind switches or not, up to two faults of any kind."""
    count = draw(st.integers(4, 24))
    hosts = tuple(f"h{i}" for i in range(count))
    size = draw(st.sampled_from([0, 2, 4, 8]))
    switches = tuple((f"s{i}", hosts[i : i + size]) for i in range(0, count, size)) if size else ()
    faults = []
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["compute", "card", "link", *(["switch", "uplink"] if switches else [])]))
        at = draw(st.integers(0, count - 1))
        where = (hosts[at],)
        if kind == "link":
            where = (hosts[at], hosts[(at + 1) % count])
        elif kind in ("switch", "uplink"):
            where = (draw(st.sampled_from([name for name, _ in switches])),)
        by = draw(st.sampled_from([0.0, 0.03, 0.05, 0.3, 2.0]))
        faults.append(Planted(kind, where, by, draw(st.sampled_from([1.0, 0.5]))))  # type: ignore[arg-type]
    return SimulatedFleet(
        Topology(hosts, switches), tuple(faults), seed=draw(st.integers(0, 10**6)), waits=draw(st.booleans())
    )


@QUICK
@given(fleets())
def test_waves_are_disjoint_and_end(fleet: SimulatedFleet) -> None:
    observations: list[Observation] = []
    for _ in range(60):
        groups = next_wave(localise(observations, fleet.topology))
        members = [host for group in groups for host in group]
        assert len(members) == len(set(members))
        assert set(members) <= set(fleet.topology.hosts)
        if not groups:
            return
        observations += fleet.run(groups)
    raise AssertionError("it never came to an end")


@QUICK
@given(fleets(), st.sampled_from([1e-6, 0.37, 3600.0]), st.randoms(use_true_random=False))
def test_neither_units_nor_order_nor_names_matter(fleet: SimulatedFleet, unit: float, draw: object) -> None:
    found = hunt(fleet, 4)
    jobs = [
        replace(
            each,
            seconds=each.seconds and each.seconds * unit,
            computing=tuple(own * unit for own in each.computing),
        )
        for each in found.observations
    ]
    draw.shuffle(jobs)  # type: ignore[attr-defined]
    before = judge(found.observations, fleet.topology)
    after = judge(jobs, fleet.topology)
    assert [each.condition for each in before.hosts] == [each.condition for each in after.hosts]
    assert {each.subject for each in before.accused} == {each.subject for each in after.accused}


@QUICK
@given(fleets())
def test_every_verdict_can_be_read(fleet: SimulatedFleet) -> None:
    """Probabilities are probabilities, reasons are there, evidence names jobs that ran on the host."""
    found = hunt(fleet, 5)
    jobs = {each.job: each for each in found.observations}
    verdicts = judge(found.observations, fleet.topology)
    for each in (*verdicts.hosts, *verdicts.links, *verdicts.switches):
        assert 0.0 <= each.confidence <= 1.0 + 1e-9
        assert each.reason
        assert each.condition != "slow" or (each.slower is not None and each.slower > 0)
        for one in each.evidence:
            assert each.switch or set(each.subject) <= set(jobs[one.job].hosts)
            assert not set(each.subject) & set(one.peers)


@QUICK
@given(st.integers(4, 40), st.integers(0, 10**6), st.booleans())
def test_no_good_host_is_accused(count: int, seed: int, waits: bool) -> None:
    fleet = SimulatedFleet(Topology(tuple(f"h{i}" for i in range(count))), seed=seed, waits=waits)
    assert not judge(hunt(fleet, 6).observations, fleet.topology).accused
