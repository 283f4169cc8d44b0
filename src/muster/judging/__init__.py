"""Find the host, link or switch that is bad, from jobs that ran on groups of hosts. Pure: no input, no
output.

    posterior = localise(observations, topology)    what all jobs so far show
    groups = next_wave(posterior)                   which disjoint groups to run next; none: all is known
    judgement = judge_posterior(posterior)          a verdict per host, and the links and switches accused

`judge(observations, topology)` does the first and the last in one. docs/judging.md explains the method.
"""

from muster.judging.ask import next_wave
from muster.judging.baseline import Baseline, JobClass, fleet_baselines
from muster.judging.document import Evidence, Subject, Verdict
from muster.judging.localise import Posterior, localise
from muster.judging.observation import Group, Observation, Settings, Topology
from muster.judging.verdict import Judgement, judge, judge_posterior

__all__ = [
    "Baseline",
    "Evidence",
    "Group",
    "JobClass",
    "Judgement",
    "Observation",
    "Posterior",
    "Settings",
    "Subject",
    "Topology",
    "Verdict",
    "fleet_baselines",
    "judge",
    "judge_posterior",
    "localise",
    "next_wave",
]
