"""The window of a survey's sessions, against simulated hosts and machines."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from muster.checks.survey import ConnectionWindow


def survey(hosts: int, pace: ConnectionWindow, takes: Callable[[int], float]) -> tuple[list[int], float]:
    """Ask so many hosts; a session takes `takes(sessions at once)` seconds. -> windows seen, seconds."""
    now, begun, answered = 0.0, 0, 0
    running: list[float] = []
    windows = []
    while answered < hosts:
        window = pace.window(now)
        windows.append(window)
        while begun < hosts and len(running) < window:
            begun += 1
            heapq.heappush(running, now + takes(len(running) + 1) * (1 + begun % 7 / 100))
        now = heapq.heappop(running)
        answered += 1
        pace.answered(now)
    return windows, now


def test_hosts_that_are_far_away_are_asked_by_as_many_sessions_as_may_be() -> None:
    windows, seconds = survey(2000, ConnectionWindow(64, connect=20, now=0.0), lambda at_once: 1.0)
    assert (windows[0], max(windows), windows[-1]) == (16, 64, 64)
    assert seconds < 2000 / 64 * 1.3


def test_a_machine_that_is_the_bottleneck_is_not_asked_for_more() -> None:
    windows, _ = survey(
        2000, ConnectionWindow(64, connect=20, now=0.0), lambda at_once: at_once / 10
    )  # ten a second
    assert max(windows) <= 32  # tried once
    assert windows[-1] == 16


def test_no_more_at_once_than_what_comes_well_within_the_time_for_a_connection() -> None:
    """One answer a second: 16 at once would take 16 of the 20 seconds each."""
    windows, _ = survey(300, ConnectionWindow(64, connect=20, now=0.0), lambda at_once: float(at_once))
    assert windows[-1] == 8


def test_the_most_is_the_most() -> None:
    windows, _ = survey(100, ConnectionWindow(4, connect=20, now=0.0), lambda at_once: 1.0)
    assert set(windows) == {4}
