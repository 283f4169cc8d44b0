"""The examples of docs/judging.md run as they stand."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from simulate import Planted, SimulatedFleet

from muster.judging import Judgement, Observation, Topology

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "judging.md").read_text(encoding="utf-8")


def test_the_loop_of_waves() -> None:
    (example,) = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    hosts = tuple(f"n{number:02d}" for number in range(16))
    fleet = SimulatedFleet(Topology(hosts), (Planted("card", ("n05",), 0.1),))
    space: dict[str, Any] = {"hosts": hosts, "run": fleet.run}
    exec(compile(example, "docs/judging.md", "exec"), space)
    judgement = space["judgement"]
    assert isinstance(judgement, Judgement) and [each.subject for each in judgement.accused] == [("n05",)]


def test_the_fields_that_it_names_are_there() -> None:
    (named,) = re.findall(r"# Observation\((.*?)\)", PAGE)
    words = [word.partition("=")[0].strip() for word in named.split(",")]
    assert len(words) > 3 and set(words) <= {each.name for each in dataclasses.fields(Observation)}
