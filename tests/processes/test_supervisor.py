"""A held job, with the real agent on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from muster.core.inventory import parse_hosts
from muster.core.job import place
from muster.core.recipes import load_recipe
from muster.fleet.launchers import local
from muster.fleet.supervisor import Supervisor
from muster.planner.orders import greeting


def test_a_host_that_is_slow_to_say_what_it_has_was_reached(tmp_path: Path) -> None:
    """The connection's patience ends with the first word; a GPU's driver may take longer to load."""
    (slow := tmp_path / "python").write_text(f'#!/bin/sh\nsleep 8\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    recipe = load_recipe("demo", ["launch.connect_timeout=6", f"launch.python={slow}"])
    places = place([(host, 1) for host in parse_hosts("local:1").hosts])
    specs = greeting(recipe, places, run_dir=tmp_path / "run", nonce="n", job_id="job-1", attempt=1)
    with Supervisor(places, local, recipe.launch, "job-1") as supervisor:
        (facts,) = supervisor.greet(specs).values()
        assert facts["python"] == str(slow)


def test_agents_stay_while_something_else_is_done(tmp_path: Path) -> None:
    """Planning may take longer than a lease, in which an agent has to hear something."""
    recipe = load_recipe("demo", ["launch.lease=2"])
    places = place([(host, 1) for host in parse_hosts("local:1").hosts])
    specs = greeting(recipe, places, run_dir=tmp_path / "run", nonce="n", job_id="job-1", attempt=1)

    def refuse() -> None:
        raise ValueError("what was done in the meantime")

    with Supervisor(places, local, recipe.launch, "job-1") as supervisor:
        supervisor.greet(specs)
        assert supervisor.meanwhile(lambda: time.sleep(4) or "made") == "made"
        assert not any(link.ended for link in supervisor.links)
        with pytest.raises(ValueError, match="in the meantime"):
            supervisor.meanwhile(refuse)
