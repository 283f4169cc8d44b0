"""`muster check` from the command line to the report: real probes on pretend hosts, real ssh to nobody."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import muster.checks.check as stage
import muster.checks.group as group
from muster.checks.base import Answers, Check, Context, Finding, Level, Transport
from muster.checks.check import (
    Replies,
    all_checks,
    check,
    inspection,
    save_inventory,
    troubles,
    verdict,
)
from muster.checks.check import judge as judge_all
from muster.checks.inspection import Inspection
from muster.checks.profiles import load_profile, shipped_profiles
from muster.checks.questions import HostAnswers
from muster.checks.registry import Family
from muster.cli.views.inspection import print_inspection
from muster.core.errors import HostError, InventoryError, UsageError
from muster.core.inventory import (
    Host,
    inventory_document,
    parse_hosts,
    parse_inventory,
    read_inventory,
)
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.recipe import Recipe, recipe_from
from muster.core.registry import load_plugin
from muster.inputs.read import Inputs
from muster.inputs.read import check as prepare_job
from tests.support import wait_until
from tests.unit.judging import probed

CHECK = [sys.executable, "-m", "muster", "check"]


def cli(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHECK, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


# ---- a family of its own, so that the machine's state does not matter --------------------------------------

SOURCE = "def probe(ask):\n    return {'host': ask['host'], 'number': int(ask['host'][-1])}\n"


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """Hosts above `most` fail, those at it warn."""
    found = []
    for host, answer in answers.items():
        most, number = context.expect("made.number", "most"), answer["number"]
        level = Level.FAIL if number > most else Level.WARN if number == most else Level.PASS
        problem = "" if level is Level.PASS else "the number is large"
        found.append(
            Finding("made.number", host, level, problem, f"{number}, at most {most}", "make it smaller")
        )
    return found


MADE = Family(
    "made",
    (
        Check(
            "made.number",
            "The host's number.",
            "Nothing.",
            {"most": 9, "word": "a", "free": None, "on": True, "some": [1, 2]},
        ),
    ),
    judge,
    SOURCE,
    asks=True,
    meets=False,
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "families", lambda: (MADE,))


def profile(folder: Path, text: str) -> str:
    path = folder / "profile.yaml"
    path.write_text(text)
    return str(path)


def inspect(hosts: str, **wanted: Any) -> Inspection:
    return check(read_inventory(hosts), Recipe(), group=False, **wanted)


def test_hosts_with_the_same_trouble_are_one_line(made: None, tmp_path: Path) -> None:
    wanted = {"profile": profile(tmp_path, "expect: {made.number: {most: 3}}")}
    found = inspect("local:6x1", **wanted)
    assert found.summary == {"fit": 3, "warning": 1, "unfit": 2, "unreachable": 0}
    assert [host.verdict for host in found.hosts] == ["fit"] * 3 + ["warning"] + ["unfit"] * 2
    assert [(each.level, each.hosts, each.count) for each in found.troubles] == [
        ("fail", "local[4-5]", 2),
        ("warn", "local3", 1),
    ]
    fail = found.troubles[0]
    assert [(seen.evidence, seen.hosts) for seen in fail.seen] == [
        ("4, at most 3", "local4"),
        ("5, at most 3", "local5"),
    ]
    assert fail.remedy == "make it smaller"
    assert not found.sound
    assert [host.host for host in found.usable] == ["local0", "local1", "local2", "local3"]
    assert found.world_size == 4


def test_a_profile_can_leave_a_check_out(made: None, tmp_path: Path) -> None:
    wanted = {"profile": profile(tmp_path, "expect: {made.number: skip}")}
    found = inspect("local:1x1", **wanted)
    assert [(each.level, each.problem) for each in found.hosts[0].checks if each.check == "made.number"] == [
        ("not applicable", "skipped by the profile")
    ]
    assert found.sound


def test_a_judge_that_cannot_read_one_host_judges_the_others(
    made: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCE.replace("int(ask['host'][-1])", "1 if ask['host'] != 'local1' else 'one'")
    broken = Family("made", MADE.checks, judge, source, asks=True, meets=False)
    monkeypatch.setattr(stage, "families", lambda: (broken,))
    found = inspect("local:3x1")
    levels = {host.host: host.checks[-1].level for host in found.hosts}
    by_check = {
        host.host: next(each.level for each in host.checks if each.check == "made.number")
        for host in found.hosts
    }
    assert by_check == {"local0": "pass", "local1": "unknown", "local2": "pass"}, levels


def heard(first: dict[str, Any], second: dict[str, Any] | None = None, family: str = "made") -> Replies:
    return {
        host: HostAnswers(Transport(0.1), {family: answer}, {family: second[host]} if second else None)
        for host, answer in first.items()
    }


def told(expects: Any = None) -> Context:
    return Context(expects or {"made.number": {"most": 9}}, {}, None, None, {}, {}, "ssh")


def test_a_second_answer_that_cannot_be_read_spoils_no_other_host() -> None:
    def together(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
        if len(answers) > 1:
            assert all(answer["seen"] >= 0 for answer in peers.values())
        return judge(answers, peers, context)

    family = Family("made", MADE.checks, together, SOURCE, asks=True, meets=True)
    first = {f"n{number}": {"number": number} for number in range(3)}
    seen = {"n0": {"seen": 1}, "n1": {"seen": "x"}, "n2": {"seen": 2}}
    found = judge_all([family], heard(first, seen), told())
    levels = {each.host: each.level for each in found if each.check == "made.number"}
    assert levels == {"n0": Level.PASS, "n1": Level.UNKNOWN, "n2": Level.PASS}


def test_a_judge_that_cannot_read_anything_leaves_unknown() -> None:
    def breaks(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
        if len(answers) > 1:
            raise ValueError("together")
        return judge(answers, peers, context)

    family = Family("made", MADE.checks, breaks, SOURCE, asks=True, meets=True)
    found = judge_all([family], heard({"n0": {"number": 0}, "n1": {"number": 1}}), told())
    assert {each.level for each in found if each.check == "made.number"} == {Level.UNKNOWN}


@pytest.mark.parametrize(("mask", "slots"), [(None, 4), (2, 2), (9, 4), (0, None)])
def test_gpus_that_were_found_are_slots(mask: int | None, slots: int | None) -> None:
    """Of an answer as the probe gives it."""
    answer = {**probed("gpu"), "gpus": [{"bus": str(number)} for number in range(4)], "mask": mask}
    found = inspection(parse_hosts("n1"), heard({"n1": answer}, family="gpu"), [], {})
    assert (found.hosts[0].slots, found.world_size) == (slots, slots)


def test_hosts_that_refuse_group_checks_leave_no_host_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = prepare_job(Recipe(), parse_hosts("n[1-7]"))

    def refuse(inputs: Inputs, **options: Any) -> Any:
        raise HostError("its agent does not start", host=inputs.inventory.hosts[0].label)

    monkeypatch.setattr(group, "measure", refuse)
    ready = {host.label: {"packages": {"torch": "2.8"}} for host in job.inventory.hosts}
    data, found = group.together(job, [], heard(ready, family="versions"), told(), lambda text: None)
    assert data is None
    assert [each.level for each in found] == [Level.FAIL] * 4 + [Level.UNKNOWN] * 3
    assert {each.host for each in found} == set(ready)


def test_hosts_without_torch_are_told_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    bare = Finding("host.grouped", "n2", Level.NOT_APPLICABLE, group.NO_TORCH)
    said = heard({"n1": {}, "n2": {}})
    print_inspection(inspection(parse_hosts("n[1-2]"), said, [bare], {}))
    assert "torch is not installed for the ranks on n2" in capsys.readouterr().out
    print_inspection(inspection(parse_hosts("n[1-2]"), said, [], {}))
    assert "torch" not in capsys.readouterr().out


def test_a_note_is_printed_when_asked_for_and_leaves_the_host_fit(capsys: pytest.CaptureFixture[str]) -> None:
    note = Finding("uptime.since_boot", "n2", Level.NOTE, "the host was restarted recently", "up for 30 s")
    found = inspection(parse_hosts("n[1-2]"), heard({"n1": {}, "n2": {}}), [note], {})
    assert found.sound and [host.verdict for host in found.hosts] == ["fit", "fit"]
    print_inspection(found)
    assert note.problem not in capsys.readouterr().out
    print_inspection(found, verbose=True)
    out = capsys.readouterr().out
    assert note.problem in out and note.evidence in out


def test_the_recipes_variables_say_which_folders_are_measured() -> None:
    env = {"HF_HOME": "/data/hub", "TMPDIR": "/scratch", "TRITON_CACHE_DIR": "/t", "OTHER": "/o"}
    recipe = recipe_from({"env": env, "launch": {"workdir": "/w"}})
    asker = stage._asker(prepare_job(recipe, parse_hosts("n1")))
    folders = asker(Placement("n1", "n1", 1, 0))["folders"]
    assert folders == {
        "work": "/w",
        "HF_HOME": "/data/hub",
        "TMPDIR": "/scratch",
        "TRITON_CACHE_DIR": "/t",
    }


def test_ctrl_c_leaves_no_files(tmp_path: Path) -> None:
    """While nvidia-smi hangs, every host has its file."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    argv = [*CHECK, "local:8x1", "--no-group"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path)
    try:
        assert wait_until(lambda: len(list(tmp_path.glob(".muster-check-*"))) == 8, 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert list(tmp_path.rglob(".muster-check-*")) == []


def test_a_probe_that_fails_is_unknown_and_never_a_pass(made: None, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Family("made", MADE.checks, judge, "def probe(ask):\n    return 1 / 0\n", asks=True, meets=False)
    monkeypatch.setattr(stage, "families", lambda: (broken,))
    found = inspect("local:2x1")
    assert found.summary["warning"] == 2
    assert {(each.check, each.level, each.hosts) for each in found.troubles} == {
        ("host.answered", "warn", "local[0-1]"),
        ("made.number", "unknown", "local[0-1]"),
    }


def test_usable_hosts_are_saved_and_read_back_with_their_slots(made: None, tmp_path: Path) -> None:
    wanted = {"profile": profile(tmp_path, "expect: {made.number: {most: 2}}")}
    found = inspect("local:4x3", **wanted)
    path = tmp_path / "fit.json"
    assert save_inventory(found, path) == 3
    again = read_inventory(str(path))
    assert again.launcher == "local"
    assert [(host.name, host.slots) for host in again.hosts] == [("local0", 3), ("local1", 3), ("local2", 3)]
    none = {"profile": profile(tmp_path, "expect: {made.number: {most: -1}}")}
    assert save_inventory(inspect("local:2x1", **none), tmp_path / "none.json") == 0
    assert not (tmp_path / "none.json").exists()


def test_expected_gpus_are_slots(made: None) -> None:
    told: list[Context] = []

    def listen(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
        told.append(context)
        return []

    family = Family("made", MADE.checks, listen, SOURCE, asks=True, meets=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "families", lambda: (family,))
        for gpus in (None, 0, 4):
            inspect("local", gpus=gpus)
    assert [(each.gpus_expected, each.slots["local"], each.world_size) for each in told] == [
        (None, None, None),
        (False, None, None),
        (True, 4, 4),
    ]


# ---- profiles ----------------------------------------------------------------------------------------------

WRONG = [
    ("expect: {made.numbr: {most: 1}}", "no such check", "made.number"),
    ("expect: {made.number: {mots: 1}}", "no expectation 'mots'", "most"),
    ("expect: {made.number: {most: many}}", "must be a number", "default is 9"),
    ("expect: {made.number: {most: true}}", "must be a number", "default is 9"),
    ("expect: {made.number: {most: [1]}}", "must be a number", "default is 9"),
    ("expect: {made.number: {word: 3}}", "must be a text", "default is 'a'"),
    ("expect: {made.number: {on: 1}}", "must be true or false", "default is True"),
    ("expect: {made.number: {free: [1]}}", "must be a number", "default is None"),
    ("expect: {made.number: {free: lots}}", "must be a number", "default is None"),
    ("expect: {made.number: {some: [1, two]}}", "must be a list of numbers", "default is [1, 2]"),
    ("expect: {made.number: 3}", "must be a mapping of expectations, or skip", None),
    ("expect: [1]", "must be a mapping", None),
    ("expects: {}", "unknown key 'expects'", "expect"),
    ("inherit: nobody", "no such profile", "shipped profiles"),
    ("inherit: 3", "must be the name or path", None),
    ("inherit: profile.yaml", "inherits from itself", None),
    ("expect: {", "not valid YAML", None),
]


@pytest.mark.parametrize(("text", "what", "hint"), WRONG, ids=[text for text, _, _ in WRONG])
def test_a_wrong_profile_is_an_error_of_one_line(
    text: str, what: str, hint: str | None, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(profile(tmp_path, text), MADE.checks)
    assert what in caught.value.what
    assert "\n" not in str(caught.value)
    assert hint is None or hint in (caught.value.hint or "")


def test_profiles_inherit_and_later_keys_win(tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("expect: {made.number: {most: 2GB, word: low}}")
    (tmp_path / "skips.yaml").write_text("expect: {made.number: skip}")
    chosen = load_profile(
        profile(tmp_path, "inherit: low.yaml\nexpect: {made.number: {word: x}}"), MADE.checks
    )
    expected = {"most": 2_000_000_000, "word": "x", "free": None, "on": True, "some": [1, 2]}
    assert chosen.expects["made.number"] == expected
    assert not chosen.skipped
    both = load_profile(profile(tmp_path, "inherit: [low.yaml, skips.yaml]"), MADE.checks)
    assert both.skipped == {"made.number"}
    back = load_profile(
        profile(tmp_path, "inherit: skips.yaml\nexpect: {made.number: {on: false}}"), MADE.checks
    )
    assert not back.skipped and back.expects["made.number"]["on"] is False


def test_a_misspelt_shipped_profile_has_near_names() -> None:
    name = sorted(shipped_profiles())[0]
    with pytest.raises(UsageError) as caught:
        load_profile(name[:-1], all_checks())
    assert name in (caught.value.hint or "")


# ---- folding -----------------------------------------------------------------------------------------------

LEVELS = st.sampled_from(list(Level))
FINDINGS = st.lists(
    st.builds(
        Finding,
        st.sampled_from(["a.x", "a.y"]),
        st.integers(1, 30).map(lambda number: f"n{number:02d}"),
        LEVELS,
        st.sampled_from(["", "p", "q"]),
        st.sampled_from(["", "1", "2", "3"]),
        st.sampled_from([None, "do"]),
    ),
    max_size=40,
)


@given(FINDINGS)
def test_folding_loses_no_host_and_counts_right(findings: list[Finding]) -> None:
    found = troubles(findings, {}, {})
    for each in found:
        same = {
            one.host
            for one in findings
            if (one.check, one.level.value, one.problem, one.remedy)
            == (each.check, each.level, each.problem, each.remedy)
        }
        assert {host.name for host in parse_hosts(each.hosts).hosts} == same
        assert each.count == len(same)
    bad = [one for one in findings if one.level in (Level.WARN, Level.FAIL, Level.UNKNOWN, Level.NOTE)]
    assert len(found) == len({(one.check, one.level, one.problem, one.remedy) for one in bad})
    worst = ["fail", "warn", "unknown", "note"]
    assert [worst.index(each.level) for each in found] == sorted(worst.index(each.level) for each in found)


@given(st.lists(LEVELS))
def test_only_a_failure_makes_a_host_unfit(levels: list[Level]) -> None:
    got = verdict([Finding("a.x", "n", level) for level in levels])
    assert got == ("unfit" if Level.FAIL in levels else "warning" if Level.WARN in levels else "fit")


# ---- the command line --------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_says_by_its_exit_code() -> None:
    done = cli("local:2", "--no-group")
    last = done.stdout.splitlines()[-1]
    assert re.match(r"1 host: 1 (fit|warning|unfit); slots for 2 ranks|1 host: 1 unfit", last), done
    assert done.returncode == (1 if "unfit" in last else 0)


def test_json_is_one_document_of_the_published_schema() -> None:
    done = cli("local:2x1", "--no-group", "--json")
    found = Inspection.model_validate_json(done.stdout)
    assert [host.host for host in found.hosts] == ["local0", "local1"]
    asked = {each.name for each in all_checks() if not each.name.startswith(("fabric.", "host.grouped"))}
    for host in found.hosts:
        assert {each.check for each in host.checks} == asked


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh client")
def test_unreachable_hosts_are_folded_with_a_remedy_and_the_exit_code_is_1(tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    done = cli("gone[01-03].muster.invalid", "--no-group", "--output", str(file), "launch.connect_timeout=5")
    assert done.returncode == 1, done
    assert "gone[01-03].muster.invalid (3 hosts)" in done.stdout
    assert "unreachable (name): the name is not known here" in done.stdout
    assert "getent hosts HOST" in done.stdout
    assert "3 hosts: 3 unreachable" in done.stdout
    assert not file.exists() and "was not written" in done.stderr


def test_the_list_explains_every_check() -> None:
    text, data = cli("--list"), json.loads(cli("--list", "--json").stdout)
    assert text.returncode == 0
    assert [each["name"] for each in data] == [each.name for each in all_checks()]
    for each in all_checks():
        assert f"\n{each.name}" in f"\n{text.stdout}"
    assert all(each["asks"] and each["why"] for each in data)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["local:2", "--output", "/"],
        ["local:2", "--output", "nosuchfolder/fit.json"],
        ["nosuchfile/hosts"],
        ["local:2", "--profile", "nosuchprofile"],
        ["local:2", "--recipe", "nosuchrecipe"],
        ["local:2", "launch.nosuch=1"],
        ["local:2", "--expect-gpus", "many"],
        ["local:2", "--expect-gpus", "-1"],
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr and done.stderr.startswith("error: ")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh client")
def test_ctrl_c_is_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    """The hosts never answer: their connection is a helper that sleeps."""
    mark = tmp_path / "helpers"
    helper = tmp_path / "helper.sh"
    helper.write_text(f"#!/bin/sh\necho $$ >> {mark}\nexec sleep 1000\n")
    helper.chmod(0o755)
    options = f"launch.ssh_options=['-F', 'none', '-o', 'ProxyCommand={helper}']"
    argv = [*CHECK, "n1,n2,n3", "--no-group", options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: mark.exists() and len(mark.read_text().split()) == 3, 30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 1
    assert out == "" and err.startswith("error: stopped by Ctrl-C") and "Traceback" not in err
    pids = mark.read_text().split()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


# ---- hostile input -----------------------------------------------------------------------------------------

HOSTILE = [
    "-oProxyCommand=touch${IFS}owned",
    "a,-oProxyCommand=touch owned",
    "x@-oProxyCommand=touch",
    "-lroot@host",
    "host;touch owned",
    "host$(touch owned)",
    "host`touch owned`",
    "host|touch",
    "host&",
    "host>owned",
    "a b",
    "a\nb",
    "a\tb",
    "a\x00b",
    "'a'",
    '"a"',
    "a*",
    "a?",
    "~root",
    "a/b,c",
    "../a,b",
    "ssh://a,b",
    "a%h",
    "[::1]%h;x",
    "é",
    "[1-99999999999]",
    "",
    " ",
    ",",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_starts_nothing(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    started: list[Sequence[str]] = []
    monkeypatch.setattr("muster.fleet.shell.start", lambda argv, env=None: started.append(argv))
    with pytest.raises(UsageError):
        inspect(text)
    assert started == []
    assert list(tmp_path.iterdir()) == []


SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*")
SPICE = st.text(st.sampled_from("ab1-@.:%[],;|&$()`'\"\\<>*?~!#{} \n\t\x00=/xé"), max_size=20)


@given(st.one_of(SPICE, st.text(max_size=20)))
@example("a@b@c")
@example("a@-b")
@example("-a@b")
@example("[fe80::1%-x]")
def test_whatever_is_accepted_can_neither_be_an_option_nor_say_anything_to_a_shell(text: str) -> None:
    """As it reaches ssh's and pdsh's argument lists, and remedies that people paste."""
    try:
        hosts = parse_hosts(text).hosts
    except InventoryError:
        return
    for host in hosts:
        for word in (host.address, host.label):
            assert SAFE.fullmatch(word), word
            assert "@-" not in word
        argv = load_plugin("muster.launchers", "ssh").remote(
            Placement(host.label, host.address, 1, 0), Launch(), ["true"]
        )
        assert argv[-2:] == [host.address, "true"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | SPICE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "slots"]), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "muster": st.just("inventory"),
            "version": st.just(1) | JSON,
            "launcher": SPICE | JSON,
            "hosts": JSON | st.lists(JSON),
        },
    )
)
def test_any_inventory_file_is_read_or_refused(data: dict[str, Any]) -> None:
    try:
        inventory = parse_inventory(json.dumps(data), source="file")
    except InventoryError as error:
        assert "\n" not in error.what
        return
    assert inventory.hosts
    for host in inventory.hosts:
        assert SAFE.fullmatch(host.label)
        assert host.slots is None or 1 <= host.slots <= 1024


NAMES = st.from_regex(r"([a-z]{1,3}@)?[a-z][a-z0-9]{0,8}", fullmatch=True)


@given(
    st.lists(
        st.builds(Host, NAMES, st.none() | st.integers(1, 1024)),
        min_size=1, max_size=5, unique_by=lambda host: host.label,
    ),
    st.sampled_from(["ssh", "local", "pdsh"]),
)  # fmt: skip
def test_an_inventory_is_read_back_as_it_was_written(hosts: list[Host], launcher: str) -> None:
    again = parse_inventory(json.dumps(inventory_document(hosts, launcher)), source="file")
    assert (again.hosts, again.launcher) == (tuple(hosts), launcher)
