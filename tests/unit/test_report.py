"""The report: pure, self-contained, safe with hostile text, and whole for every odd run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from muster.cli.train import finish
from muster.core.inventory import frozen_inventory
from muster.core.printable import HIDDEN
from muster.core.result import (
    AttentionExtremes,
    Failure,
    HostReport,
    Memory,
    Quality,
    Result,
    Seconds,
    Throughput,
)
from muster.core.state import State
from muster.inputs.read import check as check_inputs
from muster.inputs.read import read_inputs
from muster.planner.decide import decide
from muster.planner.orders import orders
from muster.reports import answers, charts, tables, words
from muster.reports.page import render
from muster.reports.rundata import RunData, gather, read_stream
from muster.results.figures import figures, interval
from muster.results.fold import EventFold
from muster.runs.resume import frozen_recipe
from muster.runs.train import freeze
from muster.store import events
from muster.store.runfolder import RunFolder

HOSTILE = (
    '<script>alert("x")</script>\'"&lt; </style></svg><img src=//evil.example/a.png onerror=x>'
    " ünïcode 你好 \u202e\udcff"
)
VOID = {"meta", "br", "hr", "img", "input", "link", "source"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; complains about elements that are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert [name for name in self.open if name not in ("p", "li")] == []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.text))


def check(data: RunData) -> Page:
    """Render twice: the same text, well-formed, harmless, without a trace of NaN in its pictures."""
    html = render(data)
    assert html == render(data)
    page = Page(html)
    forbidden = {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "image",
        "use",
        "foreignobject",
    }
    assert not forbidden & set(page.elements)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name, value)
        assert name not in ("src", "href", "xlink:href", "srcset", "style", "action"), (tag, name, value)
    assert "url(" not in html and "@import" not in html
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        drawn = re.sub(r'aria-label="[^"]*"|<title>.*?</title>', "", svg, flags=re.DOTALL)
        assert not re.search(r"\b(nan|NaN|inf|None)\b", drawn), svg[:300]
    return page


def a_result(**changes) -> Result:
    fields = {
        "id": "r1",
        "status": State.SUCCEEDED,
        "attempt": 1,
        "workload": "text2sql",
        "model": "t5-small",
        "parameters": 60_506_624,
        "engine": "ddp",
        "precision": "fp32",
        "world_size": 2,
        "global_batch": 32,
        "started": 1_795_227_544.5,
        "ended": 1_795_227_587.0,
        "seconds": Seconds(total=42.5, setup=11.0, training=20.5, evaluation=1.5, saving=0.1),
        "steps": 40,
        "samples": 1280,
        "epochs": 1.0,
        "loss_first": 6.3,
        "loss_final": 1.9,
        "evaluation_loss": 1.95,
        "throughput": Throughput(
            samples_per_second=186.4,
            tokens_per_second=7713.0,
            padded_tokens_per_second=10337.0,
            step_seconds_median=0.163,
            step_seconds_p95=0.247,
            variation=0.0735,
            windows=3,
            measured_steps=30,
        ),
        "memory": Memory(resident_peak=693_825_536),
        "quality": Quality(questions=100, exact_match=0.12, execution_match=0.2, seconds=1.7),
        "hosts": [a_host("a", [0]), a_host("b", [1])],
        "versions": {"torch": "2.8.0"},
    }
    return Result(**{**fields, **changes})


def a_host(name, ranks, **facts) -> HostReport:
    known = {"hostname": name, "cores": 8, "memory_total": 2**34, "gpus": [], "versions": {"torch": "2.8.0"}}
    return HostReport(host=name, ranks=ranks, facts={**known, **facts}, cpu_percent_mean=93.2)


def a_window(step, rank, *, steps=10, seconds=2.0, time=None, **more) -> events.Window:
    return events.Window(
        time=1000.0 + step if time is None else time,
        host=f"h{rank}",
        rank=rank,
        step=step,
        steps=steps,
        seconds=seconds,
        samples=160,
        tokens=6000,
        padded_tokens=8000,
        step_seconds=[seconds / steps] * steps,
        resident_peak=600 * 2**20 + step,
        **more,
    )


def a_run(*, ranks=2, windows=4, hosts=("a", "b"), **changes) -> RunData:
    stream = [events.JobState(time=1000.0, state="begin")]
    for window in range(1, windows + 1):
        step = 10 * window
        stream += [a_window(step, rank) for rank in range(ranks)]
        stream.append(events.Log(time=1000.0 + step, rank=0, step=step, loss=6.0 / window))
        stream.append(events.Evaluated(time=1000.0 + step, rank=0, step=step, loss=6.5 / window))
        stream += [
            events.Hardware(time=1000.0 + step, host=host, cpu_percent=90.0, memory_used=2**32)
            for host in hosts
        ]
    folder, _, _ = read_stream(stream)
    job = {"world_size": ranks, "device": "cpu", "recipe": {"measure": {"warmup": 10}, "env": {}}}
    data = RunData(
        id="r1",
        state=State.SUCCEEDED,
        result=a_result(world_size=ranks),
        folded=folder,
        recipe="workload: text2sql\n",
        plan={"decisions": [{"field": "batch.global", "value": 32, "why": "16 x 1 x 2 ranks = 32"}]},
        job=job,
        env={"muster": "0.1.0", "argv": ["muster", "train", "a b"], "versions": {"torch": None}},
        predictions=tuple(some_predictions(10)),
    )
    return replace(data, **changes)


def answer(index, question, predicted, expected, exact, executed):
    """To a held-out question."""
    return events.Answer(
        time=0.0, index=index, question=question, predicted=predicted, expected=expected, exact=exact,
        executed=executed,
    )  # fmt: skip


def some_predictions(count):
    for index in range(count):
        right = index % 3 == 0
        given = f"SELECT {index}" if right else f"SELECT {index} FROM t"
        yield answer(index, f"How many {index}?", given, f"SELECT {index}", right, index % 3 != 1)


def test_hostile_text_is_only_text():
    prediction = answer(0, HOSTILE, HOSTILE, HOSTILE + "x", False, None)
    failure = Failure(what=HOSTILE, where=HOSTILE, host=HOSTILE, hint=HOSTILE)
    facts = {"versions": {HOSTILE: HOSTILE}, "gpus": [{"name": HOSTILE}]}
    page = check(
        a_run(
            id=HOSTILE,
            hosts=(HOSTILE, "b"),
            state=State.FAILED,
            result=a_result(
                status=State.FAILED,
                failure=failure,
                model=HOSTILE,
                workload=HOSTILE,
                notes=[HOSTILE],
                hosts=[a_host(HOSTILE, [0], **facts), a_host("b", [1])],
            ),
            recipe=HOSTILE,
            plan={"decisions": [{"field": HOSTILE, "value": {HOSTILE: HOSTILE}, "why": HOSTILE}]},
            env={"argv": [HOSTILE], "rank_environment": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}},
            predictions=(prediction,),
        )
    )
    assert page.words.count("<script>") > 15


def test_nothing_at_all():
    page = check(RunData(id="r", state=State.FAILED))
    assert "The run failed" in page.words
    assert "Not measured" in page.words and "No loss was logged." in page.words


def test_failed_before_the_first_step():
    early = a_result(
        status=State.FAILED,
        failure=Failure(what="no such file", where="train.jsonl:3", host="b", hint="look there", usage=True),
        seconds=Seconds(total=1.0),
        steps=0,
        samples=0,
        loss_first=None,
        loss_final=None,
        evaluation_loss=None,
        epochs=None,
        throughput=None,
        quality=None,
        memory=Memory(),
    )
    page = check(a_run(windows=0, hosts=(), state=State.FAILED, result=early, predictions=()))
    for told in ("Failed: no such file", "train.jsonl:3", "look there"):
        assert told in page.words
    told, _, folded = page.words.partition("How to read this")[0].partition("Not measured (")
    for name in ("Throughput", "Held-out loss, last", "GPU, allocator's peak"):
        assert name in folded and name not in told
    assert "-1" not in "".join(each.value for each in figures(early))


def test_a_failed_run_shows_its_log(tmp_path):
    """The log of the rank that failed, its last lines, without what would control a terminal."""
    run = frozen(tmp_path / "run", [])
    run.host_log("local").write_text("torchrun says so\n")
    log = (
        "".join(f"line {number}\n" for number in range(4000)) + "\x1b[31mOSError\x1b[0m: \x07no such file\n\n"
    )
    run.rank_log("local", 1).write_text(log)
    event = events.Failed(time=1, rank=1, host="local", attempt=1, what="no such file")
    run.events.write_text(events.to_line(event) + "\n")
    failed = a_result(status=State.FAILED, failure=Failure(what="no such file", where="rank 1", host="local"))
    run.result.write_text(failed.model_dump_json())
    page = check(gather(run))
    assert "The last lines of local.rank1.log" in page.words
    assert "line 3999 OSError: no such file" in page.words
    assert "line 3900" not in page.words
    run.rank_log("local", 1).unlink()
    assert "torchrun says so" in check(gather(run)).words


@pytest.mark.parametrize("state", State, ids=str)
@pytest.mark.parametrize("failure", [None, Failure(what="stopped by `muster stop`")])
def test_every_state(state, failure):
    assert check(a_run(state=state, result=a_result(failure=failure)))
    assert check(a_run(state=state, result=None))


def test_gaps_and_values_that_are_no_numbers():
    stream = [
        events.Log(time=1, rank=0, step=step, loss=loss)
        for step, loss in enumerate([3.0, math.nan, 2.0, math.inf, 1e300, None, 1.0])
    ]
    stream += [
        a_window(10, 0),
        a_window(10, 1),
        a_window(20, 0),
        a_window(30, 0, seconds=0.0),
        a_window(30, 1),
    ]
    stream += [a_window(40, rank, seconds=math.nan) for rank in (0, 1)]
    stream += [events.Hardware(time=math.nan, host="a", cpu_percent=3.0, memory_used=None)]
    folder, _, _ = read_stream(stream)
    page = check(a_run(folded=folder, result=a_result(loss_final=math.nan)))
    assert "1 window of 4 without a rank's figures" in page.words
    assert "nan" not in page.words.lower().replace("unannounced", "")


def test_512_ranks_and_many_events_stay_small():
    hosts = [f"node{index:02d}" for index in range(64)]
    many = [a_host(host, list(range(8 * i, 8 * i + 8))) for i, host in enumerate(hosts)]
    data = a_run(ranks=512, windows=50, hosts=hosts, result=a_result(world_size=512, hosts=many))
    html = render(data)
    assert len(html) < 400_000
    page = check(data)
    assert "lowest to highest of 512 ranks" in page.words and "median of 64 hosts" in page.words
    assert "504–511" in page.words


def test_a_long_run_is_thinned_but_keeps_its_spikes():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[70_000] = (70_000.0, None)
    kept = charts.thin(points)
    assert len(kept) < 500
    assert (54_321.0, 99.0) in kept and any(y is None for _, y in kept)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_a_gap_parts_the_line():
    chart = charts.Chart(
        "T", "u", "step", (charts.ChartSeries("a", ((1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 3.0))),)
    )
    svg = charts.line_chart(chart)
    assert svg.count('<path class="line') == 2
    alone = charts.Chart("T", "u", "step", (charts.ChartSeries("a", ((1, 1.0),)),))
    assert "<circle" in charts.line_chart(alone) and "<path" not in charts.line_chart(alone)


def test_an_empty_chart_is_a_sentence():
    empty = charts.Chart(
        "T", "u", "step", (charts.ChartSeries("<a>", ((1, None), (2, math.nan))),), nothing="None <here>."
    )
    assert charts.line_chart(empty) == '<p class="nothing">None &lt;here&gt;.</p>'


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 0), (5, 5), (-3, 7), (1e-12, 2e-12), (1e9, 1e9 + 1), (1e99, 2e99), (-1e99, 1e99)],
)
def test_ticks_cover_and_are_few(low, high):
    found = charts.ticks(low, high)
    assert found[0] <= low + 1e-6 * abs(low) and found[-1] >= high - 1e-6 * abs(high)
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))


def test_predictions_show_every_kind_and_count_all():
    predictions = [answer(i, "q", "a", "a", True, True) for i in range(500)]
    predictions += [answer(500 + i, "q", "b", "a", False, True) for i in range(300)]
    predictions += [answer(800 + i, "q", "c", "a", False, False) for i in range(200)]
    predictions += [
        answer(1000, "q", " ", "a", False, False),
        answer(1001, "q", "a", "a", True, False),
    ]
    shown, counts = answers.choose(predictions)
    assert len(shown) == answers.SHOWN
    assert {each.kind.key: each.total for each in counts} == {
        "odd": 1, "empty": 1, "rows": 200, "same": 300, "exact": 500
    }  # fmt: skip
    assert all(each.shown for each in counts)
    order = [each.kind.right for each in shown]
    assert order == sorted(order)
    assert len(answers.choose(predictions[:3])[0]) == 3 and answers.choose([]) == ([], [])
    assert "1,002 in total, 50 shown" in check(a_run(predictions=tuple(predictions))).words


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [("SELECT a", "SELECT b"), ("", "x"), ("same", "same"), ("x" * 5000, "y z " * 5000)],
)
def test_differences_lose_no_text(predicted, expected):
    ours, theirs = answers.compare(predicted, expected)
    assert "".join(text for text, _ in ours) == predicted and "".join(text for text, _ in theirs) == expected


def frozen(folder, overrides) -> RunFolder:
    """A run as it was written down before its start."""
    inputs = read_inputs("digits", "local:2", overrides)
    facts = {host.label: {"gpus": [], "cores": 2} for host in inputs.inventory.hosts}
    decided = decide(inputs, facts)
    run = RunFolder(folder)
    run.create()
    here = {"python": "python3", "port": 1}
    told = orders(inputs, decided, {host: {**about, **here} for host, about in facts.items()})
    freeze(run, inputs, replace(decided, orders=told))
    return run


TOKEN = "hf_abcdefgh12345"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"env.HF_TOKEN={TOKEN}", "env.NCCL_DEBUG=INFO", "env_show=[NCCL_DEBUG]"],
        [f'env={{"HF_TOKEN": "{TOKEN}", "NCCL_DEBUG": "INFO"}}', "env_show=[NCCL_DEBUG]"],
        [f"env={{HF_TOKEN: {TOKEN}, NCCL_DEBUG: INFO}}", "env_show=[NCCL_DEBUG]"],
    ],
)
def test_secrets_are_not_shown(tmp_path, monkeypatch, overrides):
    monkeypatch.setattr("sys.argv", ["muster", "train", "digits", "--hosts", "local:2", *overrides])
    run = frozen(tmp_path / "run", overrides)
    holders = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*") if path.is_file()
               and TOKEN in path.read_text()}  # fmt: skip
    assert holders == {}
    again = check_inputs(
        frozen_recipe(run), frozen_inventory(run.read_json(run.job)["inventory"], "job.json")
    )
    assert again.env == {"HF_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"}  # a resumed run has it
    page = check(gather(run))
    assert TOKEN not in render(gather(run))
    assert "muster train digits" in page.words and "INFO" in page.words and HIDDEN in page.words
    run.job.unlink()  # it was the last one to be written
    assert TOKEN not in render(gather(run)) and "HF_TOKEN" in render(gather(run))


def test_a_command_of_an_earlier_versions_folder_is_masked():
    typed = {"argv": ["muster", "train", "r.yaml", f"env.HF_TOKEN={TOKEN}"]}
    assert tables.commands(a_run(env=typed))[0][1] == "muster train r.yaml 'env.HF_TOKEN=(hidden)'"


def test_versions_that_differ_have_a_column():
    hosts = [a_host("a", [0]), a_host("b", [1], versions={"torch": "2.9.0"})]
    table = tables.host_table(a_run(result=a_result(hosts=hosts)))
    assert table.columns[-1] == "torch" and [row[-1] for row in table.rows] == ["2.8.0", "2.9.0"]


def test_hosts_that_are_one_machine_are_named():
    hosts = [a_host("local0", [0], hostname="vm"), a_host("local1", [1], hostname="vm")]
    assert any(
        "the same machine (vm)" in note
        for note in tables.host_table(a_run(result=a_result(hosts=hosts))).notes
    )


def test_ranges():
    assert words.ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8" and words.ranges([]) == "none"


def write_run(path, *, result=True) -> RunFolder:
    run = RunFolder(path)
    run.create()
    recipe = {"workload": "text2sql", "measure": {"warmup": 10}}
    job = {
        "id": run.id,
        "launcher": "local",
        "placements": [{"host": f"h{i}", "address": f"h{i}", "slots": 1, "first_rank": i} for i in (0, 1)],
        "batch": {"micro": 16, "accumulation": 1, "global": 32},
        "precision": "fp32",
        "device": "cpu",
        "recipe": recipe,
        "attempt": 1,
        "resume_step": None,
        "decisions": [],
        "world_size": 2,
    }
    run.job.write_text(json.dumps(job))
    stream = [a_window(step, rank) for step in (10, 20, 30) for rank in (0, 1)]
    stream.append(
        events.Answer(time=1040, rank=0, index=1, question="q", predicted="p", expected="e", exact=False)
    )
    text = "".join(
        events.to_line(event) + "\n" for event in [events.JobState(time=1000, state="begin"), *stream]
    )
    run.events.write_text(text + '{"v": 1, "kind": "windo')
    if result:
        run.result.write_text(a_result().model_dump_json())
        line = json.dumps(
            {"index": 0, "question": "q", "predicted": "p\u2028", "expected": "e", "exact": False}
        )
        run.predictions.write_text(f"{line}\nnot json\n[]\n")
    return run


def test_a_finished_folder(tmp_path):
    data = gather(write_run(tmp_path / "run"))
    assert data.state == "succeeded" and data.result == a_result()
    assert [each.predicted for each in data.predictions] == ["p\u2028"] and data.unreadable == 2
    assert "2 lines of predictions.jsonl could not be read" in check(data).words


def test_what_failed_after_the_start_ends_with_1(tmp_path):
    """2 is for bad input of which nothing was started; the ranks found this, and left a run folder."""
    run, failure = write_run(tmp_path / "run"), Failure(what="no such file", usage=True)
    assert finish(a_result(status=State.FAILED, failure=failure), run, json=True) == 1
    assert finish(a_result(), run, json=True) == 0


def test_an_unfinished_folder_shows_what_its_events_say(tmp_path):
    data = gather(write_run(tmp_path / "run", result=False))
    assert data.state == "interrupted" and data.result is not None and data.result.steps == 30
    page = check(data)
    assert "The run was interrupted after 30 optimizer steps" in page.words
    assert "160.0 samples/s" in page.words and "1 in total, 1 shown" in page.words


def test_an_empty_folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create()
    data = gather(run)
    assert data.folded == EventFold() and data.result is None
    check(data)


def test_attention_logits_have_two_pictures():
    """A line per layer where they are few, their range where they are many; none where nobody looked."""
    assert "attention logit" not in check(a_run()).words

    def watched(layers):
        data = a_run()
        for step in (10, 20):
            data.folded.attention[step] = events.Attention(
                time=1000.0 + step,
                step=step,
                layers=[f"layer{index}" for index in range(layers)],
                largest=[float(step + index) if index else None for index in range(layers)],
                smallest=[-float(step + 2 * index) for index in range(layers)],
                seconds=0.1,
            )
        seen = AttentionExtremes(largest=None, smallest=None, windows=2, seconds=0.2, share=0.014)
        return replace(data, result=data.result.model_copy(update={"attention": seen}))

    words = check(watched(3)).words
    assert "Largest attention logit of each layer" in words and "Smallest attention logit" in words
    assert "Recording this took 1.4 % of the training." in words and "layer2" in words
    assert "lowest to highest of 96 layers" in check(watched(96)).words


def test_an_interval_of_a_share() -> None:
    """Wilson's: 50 of 100, and none of 12, as statistics packages give them."""
    assert "40.4–59.6" in interval(0.5, 100) and "0.0–24.3" in interval(0.0, 12)
