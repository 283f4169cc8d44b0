"""What hosts say is written down, whether or not somebody watches."""

from __future__ import annotations

import json
import time
from pathlib import Path

from muster.results.fold import fold
from muster.runs.recorder import Recorder, machine_id
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.secrets import scrubber


def made(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    return run


def phase(name: str) -> str:
    return events.to_line(events.Phase(time=1.0, rank=0, name=name))


def test_a_display_that_is_gone_costs_the_display_alone(tmp_path: Path) -> None:
    """As in `muster train ... 2>&1 | head -3`: the pipe breaks, the events go on."""
    seen = []

    def watch(event: events.Event) -> None:
        seen.append(event)
        raise BrokenPipeError

    run = made(tmp_path)
    with Recorder(run, 1, watch) as recorder:
        recorder.event("node1", phase("load"))
        recorder.event("node1", phase("train"))
    kept = [event.name for event in events.read_events(run.events) if isinstance(event, events.Phase)]
    assert kept == ["load", "train"]
    assert len(seen) == 1


def test_events_get_their_hosts_name_and_others_go_to_the_log(tmp_path: Path) -> None:
    run = made(tmp_path)
    with Recorder(run, 1, lambda event: None) as recorder:
        recorder.event("node1", phase("load"))
        recorder.event("node1", '{"kind": "unheard of"}')
    assert [event.host for event in events.read_events(run.events)] == ["node1"]
    assert "unheard of" in run.host_log("node1").read_text()


def test_a_secret_is_masked_however_json_writes_it(tmp_path: Path) -> None:
    run, secret = made(tmp_path), 'abc"dé\\f'
    with Recorder(run, 1, lambda event: None, scrubber({"A_TOKEN": secret})) as recorder:
        for ascii in (True, False):
            told = {"v": 1, "kind": "failed", "time": 1.0, "rank": 0, "what": f"no {secret}!"}
            recorder.event("node1", json.dumps(told, ensure_ascii=ascii))
    found = [event.what for event in events.read_events(run.events) if isinstance(event, events.Failed)]
    assert found == ["no (hidden)!"] * 2


def test_the_end_of_what_a_rank_printed(tmp_path: Path) -> None:
    run = made(tmp_path)
    with Recorder(run, 1, lambda event: None) as recorder:
        assert recorder.rank_words("node1", 0) == ""
        recorder.log("node1", 0, ["x" * 100_000, "the last words"])
    words = recorder.rank_words("node1", 0)
    assert words.endswith("the last words\n") and len(words) < 100_000


def test_a_sample_is_of_the_host_that_sent_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    with Recorder(run, 3, lambda event: None) as recorder:
        recorder.hardware("node1", {"time": 1.0, "cpu_percent": 5.0, "host": "node2", "attempt": 1})
    (event,) = events.read_events(run.events)
    assert (event.host, event.attempt) == ("node1", 3)


def test_the_words_of_this_attempt(tmp_path: Path) -> None:
    """Logs are appended over attempts; only the last attempt's explain its end."""
    run = made(tmp_path)
    for attempt in (1, 2):
        with Recorder(run, attempt, lambda event: None) as recorder:
            recorder.begin_logs(["node1"])
            assert recorder.rank_words("node1", 0) == ""
            recorder.log("node1", 0, [f"said in attempt {attempt}"])
            assert recorder.rank_words("node1", 0) == f"said in attempt {attempt}\n"


def test_a_line_that_was_cut_short_is_ended_first(tmp_path: Path) -> None:
    """After a controller that was killed in mid-write, the next event is not glued to the torn one."""
    run = made(tmp_path)
    run.events.write_text(phase("load") + "\n" + phase("train")[:20])
    with Recorder(run, 2, lambda event: None) as recorder:
        recorder.event("node1", phase("save"))
    kept = [event.name for event in events.read_events(run.events) if isinstance(event, events.Phase)]
    assert kept == ["load", "save"]


def test_what_is_heard_gets_the_controllers_time(tmp_path: Path) -> None:
    """The host's clock is an hour fast. Folded as it comes and from the file, the set-up is the same."""
    run, began = made(tmp_path), time.time()
    with Recorder(run, 1, lambda event: None) as recorder:
        recorder.say(events.JobState, state="begin")
        recorder.event("node1", events.to_line(events.Phase(time=began + 3600, rank=0, name="steps")))
    state, steps = events.read_events(run.events)
    assert steps.time == began + 3600
    assert began <= state.arrived <= steps.arrived <= time.time()
    folder = fold(events.read_events(run.events))
    assert folder.stepping == recorder.folded.stepping == {0: steps.heard}
    assert folder.last_heard == recorder.folded.last_heard == steps.heard
    assert events.parse_event('{"kind": "phase", "time": 7, "name": "steps"}').arrived == 7  # an older file


def test_the_controllers_own_work_is_the_runs(tmp_path: Path) -> None:
    """Where it runs on one of the hosts: else it would be other processes' work. It counts once."""
    sample = {"time": 1.0, "cpu_busy": 5.0, "cpu_own": 0.0}
    heard: dict[str, list[float]] = {}

    def watch(event: events.Event) -> None:
        if isinstance(event, events.Hardware):
            heard.setdefault(event.host or "", []).append(event.cpu_own or 0.0)

    with Recorder(made(tmp_path), 1, watch) as recorder:
        for host, machine in (("far", "another"), ("here", machine_id()), ("here too", machine_id())):
            recorder.say(events.HostFacts, host=host, facts={"machine": machine})
        before = time.process_time()
        for _ in range(2):
            for host in ("far", "here", "here too"):
                recorder.hardware(host, sample)
    assert heard["far"] == heard["here too"] == [0.0, 0.0]
    assert sum(heard["here"]) >= before > 0
