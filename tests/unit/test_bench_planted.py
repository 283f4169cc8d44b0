"""What planted bugs in bench and judge changed, and no other test saw. Figures are computed by hand."""

from __future__ import annotations

import pytest

from muster.benches.logs import logs_of
from muster.benches.schedule import Task
from muster.cli.views.verdicts import means_of
from muster.core.recipes import load_recipe
from muster.core.state import State
from muster.judging.document import Gate, JobEntry, Judged, Verdict
from tests.unit.benches import recorded
from tests.unit.test_bench_logs import product, swept


def test_a_switch_that_is_slow_does_not_pass() -> None:
    """Also where every host behind it is fit."""
    fit = Verdict(hosts=["a"], condition="fit", confidence=1.0, reason="")
    slow = Verdict(hosts=["a"], switch="leaf0", condition="slow", confidence=1.0, reason="")
    fields = {"source": "x", "slow": 0.01, "links": [], "peers": [], "jobs": []}
    assert Judged.model_validate({**fields, "hosts": [fit]}).gate is Gate.FIT
    assert Judged.model_validate({**fields, "hosts": [fit], "switches": [slow]}).gate is Gate.BAD


def test_a_hosts_products_are_those_of_its_slowest_device() -> None:
    """2 x 1000^3 operations at 1e12 and at 5e11 a second: 4 ms."""
    task = Task("j", "fabric", ("a",), 60.0)
    found = swept(["a"], {})
    assert found.fabric is not None
    products = [
        product("fp32", host="a", rank=rank, sustained=speed) for rank, speed in enumerate((1e12, 5e11))
    ]
    result = found.model_copy(update={"fabric": found.fabric.model_copy(update={"matmul": products})})
    (logs,) = logs_of({"j": recorded(task, result)}, {"fabric": load_recipe("fabric")}).values()
    assert [log.step_seconds for log in logs if log.measured] == [pytest.approx(0.004)]


def test_means_are_by_host_and_by_the_number_of_hosts() -> None:
    """Alone by 1 and 3 %, in pairs by 8 and 9 %; in another work, in which nothing is slow, by nothing."""
    told = [
        (("a",), 0.01, "heavy"), (("a",), 0.03, "heavy"), (("a",), 0.0, "light"), (("a", "b"), 0.08, "heavy"),
        (("a", "b"), 0.09, "heavy"), (("a", "b"), 0.0, "light"), (("b",), None, "heavy"),
    ]  # fmt: skip
    jobs = [
        JobEntry(job=str(n), outcome=State.SUCCEEDED, hosts=list(hosts), slower=slower, work=work)
        for n, (hosts, slower, work) in enumerate(told)
    ]
    assert means_of(jobs) == {("a", 1): pytest.approx(0.02), ("a", 2): 0.08, ("b", 2): 0.08}
