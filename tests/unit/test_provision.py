"""Provision: what is pinned, what is planned, how environments are compared, and the host's own program."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from muster.agent import provision
from muster.agent.files import REMOTE
from muster.cli.app import main
from muster.core.errors import HostError, RecipeError, UsageError
from muster.core.inventory import Host
from muster.core.job import Placement
from muster.inputs.hub import check_names
from muster.inputs.read import read_inputs, read_recipe
from muster.prepare import host as prepare_host
from muster.prepare.host import HostJobs
from muster.prepare.pinned import pinned_here, read_requirements
from muster.prepare.plan import Options, make_plan, plan_as_dict
from muster.prepare.prepare import provision as provision_hosts
from muster.prepare.result import differences
from muster.prepare.warm import WarmJob, kernel_folders, warm_recipe
from muster.store.tree import Tree
from muster.worker import locks
from tests.support import wait_until
from tests.wheels import PROGRAM, environment, make_wheel, run_program, start_program

# --- what is pinned --------------------------------------------------------------------------------------


def test_hosts_get_the_versions_of_this_machine() -> None:
    """All that ranks import, with everything that it requires; a build's own label is left out."""
    pytest.importorskip("torch")
    pinned = pinned_here(None).requirements
    names = {line.partition("==")[0] for line in pinned}
    assert {"torch", "transformers", "deepspeed", "pydantic", "numpy", "safetensors"} <= names
    assert not {"passmuster", "pytest", "ruff"} & names
    assert f"torch=={version('torch').partition('+')[0]}" in pinned
    assert all(re.fullmatch(r"[a-z0-9-]+==[^+;\s]+", line) for line in pinned)


def test_a_constraints_file_says_which_versions(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text((PROGRAM.parents[3] / "constraints.txt").read_text())
    pinned = pinned_here(file)
    assert pinned.constraints == file.read_text()
    assert any(line.startswith("torch>=") for line in pinned.requirements)
    file.write_text("torch==2.13.0\n")
    with pytest.raises(UsageError, match=r"has no version of .*transformers"):
        pinned_here(file)


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "torch>=2",
        "-e .",
        "--index-url http://x",
        "-r other.txt",
        "torch @ file:///x",
        "a==1; rm==2\\",
        "a==",
    ],
)
def test_only_pinned_requirements_are_taken(tmp_path: Path, line: str) -> None:
    """An unpinned one differs from host to host; an option is pip's, and has a flag here."""
    file = tmp_path / "req.txt"
    file.write_text(f"# a comment\nninja==1.13.2\n{line}\n")
    if line.startswith("a==1;"):
        assert len(read_requirements(file).requirements) == 2  # a marker
        return
    with pytest.raises(UsageError, match=r"req\.txt:3: .* is not a pinned requirement"):
        read_requirements(file)


def test_the_key_names_the_set(tmp_path: Path) -> None:
    """The order does not matter; versions, wheels and the interpreter do."""
    files = [tmp_path / name for name in "abc"]
    for file, text in zip(files, ("a==1\nb==2\n", "b==2  # two\n\na==1\n", "a==1\nb==3\n"), strict=True):
        file.write_text(text)
    first, again, other = map(read_requirements, files)
    assert first.key([], None) == again.key([], None)
    keys = {
        first.key([], None),
        other.key([], None),
        first.key([("w", "1")], None),
        first.key([], "python3.12"),
    }
    assert len(keys) == 4


# --- what is planned -------------------------------------------------------------------------------------


@pytest.fixture
def options(tmp_path: Path) -> Options:
    make_wheel(tmp_path / "wheels", "tinya", "1.0")
    (tmp_path / "req.txt").write_text("tinya==1.0\n")
    return Options(wheels=tmp_path / "wheels", requirements=tmp_path / "req.txt")


def test_a_plan_names_what_the_recipe_reads(tmp_path: Path, options: Options) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()
    pairs = (f'{{"question": "{q}", "sql": "s"}}\n' for q in "pq")
    (data / "train.jsonl").write_text("".join(pairs))
    overrides = [f"model.name={model}", f"data.path={data}", "model.init=pretrained"]
    inputs = read_inputs("demo", "node1,node2", [*overrides, "model.config=null"])
    plan = make_plan([inputs], options)
    assert plan.local == (str(model), str(data))
    assert plan.hub == ()
    assert plan.venv == f"~/.cache/muster/venvs/{plan.key}"
    wheel = tmp_path / "wheels/tinya-1.0-py3-none-any.whl"
    size = wheel.stat().st_size
    assert plan.wheels == ((wheel, hashlib.sha256(wheel.read_bytes()).hexdigest(), size),)
    assert [each.path for each in plan.files()] == [data / "train.jsonl"]
    json.dumps(plan_as_dict(plan, [inputs], options))
    assert (
        make_plan([read_inputs("demo", "local:2x1", overrides)], options).local == ()
    )  # they are this machine


@pytest.mark.parametrize(
    ("overrides", "hub"),
    [
        (["model.name=t5-small", "model.init=pretrained", "model.tokenizer=auto"], [("model", "t5-small")]),
        (["model.name=t5-small", "model.init=random"], []),
        (["model.name=org/own", "model.init=random"], [("tokenizer", "org/own")]),
        (["model.tokenizer=org/words"], [("tokenizer", "org/words")]),
        (["data.name=org/set"], [("dataset", "org/set")]),
    ],
)
def test_a_plan_names_what_comes_from_the_hub(
    options: Options, overrides: list[str], hub: list[tuple[str, str]]
) -> None:
    plan = make_plan([read_inputs("demo", "node1", ["model.tokenizer=train", *overrides])], options)
    assert list(plan.hub) == hub


def test_the_configuration_of_a_hub_data_set_is_fetched(options: Options) -> None:
    inputs = read_inputs("causal-lm", "node1", ["data.library=null", "data.name=org/set", "data.subset=raw"])
    assert ("dataset", "org/set:raw") in make_plan([inputs], options).hub


@pytest.mark.parametrize("index", ["--trusted-host", "ftp://x", "simple", "https://a b"])
def test_an_index_is_an_address(options: Options, index: str) -> None:
    with pytest.raises(UsageError, match="is not an index"):
        make_plan([read_inputs("demo", "node1", [])], Options(index=index, requirements=options.requirements))


def test_a_dry_run_hides_an_index_password(options: Options) -> None:
    given = Options(index="https://me:hush@host/simple", requirements=options.requirements)
    inputs = read_inputs("demo", "node1", [])
    assert "hush" not in json.dumps(plan_as_dict(make_plan([inputs], given), [inputs], given))


def test_the_warm_job_is_one_step_of_one_rank() -> None:
    """It stays a valid recipe, with the engine, width and precision of the real one."""
    overrides = ["batch.global=512", "engine.zero=3", "train.epochs=9", "model.config.num_layers=40"]
    overrides += ["measure.profile=flops"]  # of a step that the short job does not have
    overrides += ["launch.hosts=2"]  # which each host by itself is not
    inputs = read_inputs(
        "text2sql-t5-large-zero3-offload", "node1:8", [*overrides, "data.generated.train=9000"]
    )
    data = warm_recipe(inputs, ["launch.python=/v e/python", "env.A=1"], "~/c", 60)
    recipe = type(inputs.recipe).model_validate(data)
    assert (recipe.train.max_steps, recipe.batch.global_, recipe.batch.micro) == (1, None, 32)
    assert (recipe.model.init, recipe.model.config) == ("random", {"num_layers": 1, "num_decoder_layers": 1})
    assert recipe.engine == inputs.recipe.engine
    assert recipe.launch.hosts is None
    assert not recipe.measure.profiled
    assert recipe.data.generated and recipe.data.generated.train == 256  # type: ignore[attr-defined]
    assert (recipe.launch.python, recipe.env["A"], recipe.launch.workdir) == ("/v e/python", "1", "~/c/warm")


def test_kernels_stay_off_network_file_systems() -> None:
    """Where a home is on one, both caches go to the host's own disk; what the recipe sets stays."""
    far = {"node1": {"home_is_remote": True, "uid": 7}, "node2": {"home_is_remote": False, "uid": 7}}
    near = {"node1": {"home_is_remote": False, "uid": 7}}
    assert kernel_folders(near, {}, None, "d" * 64) == {}
    found = kernel_folders(far, {"TRITON_CACHE_DIR": "/mine"}, None, "d" * 64)
    assert found == {"TORCH_EXTENSIONS_DIR": ("/tmp", "muster-7", "d" * 16, "torch_extensions")}
    assert set(kernel_folders(near, {}, "/scratch", "d" * 64)) == {"TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}


def test_one_list_of_shared_file_systems() -> None:
    """Ranks do not have the agent's package, so the list stands in both."""
    assert locks.REMOTE == REMOTE
    for kind in ("nfs4", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "wekafs", "pvfs2", "smb3"):
        assert kind.startswith(REMOTE)
    assert not any(
        kind.startswith(REMOTE) for kind in ("ext4", "xfs", "tmpfs", "overlay", "zfs", "fuse.snapfuse")
    )


# --- comparing -------------------------------------------------------------------------------------------


def about(python: str = "3.11.2", **packages: str) -> dict[str, Any]:
    return {"python": python, "tag": "cpython-311", "platform": "linux-x86_64", "packages": packages}


def test_what_differs_is_named_with_its_majority() -> None:
    found = differences(
        {"n1": about(a="1", b="1"), "n2": about(a="2", b="1"), "n3": about("3.11.9", a="1", b="1", c="5")}
    )
    assert [(each.name, each.majority, each.blamed) for each in found] == [
        ("a", "1", ["n2"]),
        ("c", "absent", ["n3"]),
    ]
    assert str(found[0]) == "a: 1 on n[1,3]; 2 on n2"
    assert differences({"n1": about(a="1"), "n2": about("3.11.9", a="1")}) == []


def test_without_a_majority_all_are_blamed() -> None:
    (found,) = differences({"n1": about(a="1"), "n2": about(a="2")})
    assert (found.majority, found.blamed) == (None, ["n1", "n2"])


# --- the host's program ----------------------------------------------------------------------------------


def file_of(path: Path, data: bytes, digest: bool = True) -> list[Any]:
    """A file as an order names it."""
    return [str(path), len(data), 10**18, hashlib.sha256(data).hexdigest() if digest else None]


def test_files_arrive_once(tmp_path: Path) -> None:
    """What is missing is named first, then brought; the second time nothing."""
    contents = {"a b\n;'\".txt": b"one", "deep/er/two": b"2" * 70_000, "same": b"one", "empty": b""}
    root = tmp_path / "to $(here)"
    files = [file_of(root / name, data) for name, data in contents.items()]
    lacking = [[*each[:3], None] for each in files]
    assert run_program(tmp_path, "make", files=lacking)["lacks"] == {"files": [0, 1, 2, 3]}
    assert not root.exists()
    brought = {hashlib.sha256(data).hexdigest(): data for data in contents.values()}
    report = run_program(tmp_path, "make", brought, files=files)
    assert (report["lacks"], report["copied"]) == ({}, [0, 1, 2, 3])
    assert {name: (root / name).read_bytes() for name in contents} == contents
    assert (root / "same").stat().st_ino != (root / "a b\n;'\".txt").stat().st_ino
    assert not list(root.rglob(".muster*"))
    report = run_program(tmp_path, "make", files=lacking)
    assert (report["lacks"], report["copied"]) == ({}, [])


def test_a_copy_that_is_stopped_leaves_no_part(tmp_path: Path) -> None:
    """As its agent stops it at Ctrl-C: nothing of it lies among the data."""
    place, digest = tmp_path / "data", hashlib.sha256(b"whole").hexdigest()
    (tmp_path / "job" / "code").mkdir(parents=True)
    os.mkfifo(tmp_path / "job" / "code" / digest)
    with start_program(tmp_path, "make", brought=True, files=[file_of(place / "file", b"whole")]) as process:
        try:
            with (tmp_path / "job" / "code" / digest).open("wb", buffering=0) as source:
                source.write(b"wh")
                assert wait_until(lambda: list(place.glob(".muster-*")), 60, every=0.01)
                process.terminate()
                wait_until(lambda: process.poll() is not None, 10)
            # A signal just before a read interrupts nothing: then the end of what comes does.
            assert process.wait(60) != 0
        finally:
            process.kill()
    assert not list(place.iterdir())


def test_what_is_there_and_differs_is_never_written_over(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    for name, there in (("size", b"mine"), ("content", b"mine!")):
        (place / name).write_bytes(there)
        files = [file_of(place / name, b"other"), file_of(place / "new", b"new")]
        failed = run_program(tmp_path, "make", {}, files=files)
        assert failed["kind"] == "failed" and f"{place / name} differs" in failed["what"]
        assert (place / name).read_bytes() == there
        assert not (place / "new").exists()
        (place / name).unlink()
    (place / "link").symlink_to("nowhere")
    failed = run_program(tmp_path, "make", files=[file_of(place / "link", b"x", digest=False)])
    assert f"{place / 'link'} differs" in failed["what"]


def test_a_disk_has_to_have_room_for_all_copies(tmp_path: Path) -> None:
    """One in the file's place, two below the cache."""
    for share, kind in ((0.45, "failed"), (0.25, "report")):
        size = int(shutil.disk_usage(tmp_path).free * share)
        said = run_program(tmp_path, "make", files=[[str(tmp_path / "data"), size, 1, None]])
        assert said["kind"] == kind, said


def test_each_disk_has_to_have_room_for_its_own_files(tmp_path: Path) -> None:
    """A model on one disk, which holds the cache as well, and data on another: neither has to hold all."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        if Path(memory).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no disk of its own here")
        small, large = sorted((memory, str(tmp_path)), key=lambda place: shutil.disk_usage(place).free)
        size = int(0.4 * shutil.disk_usage(small).free)
        data = [f"{large}/data/file", size, 1, None]
        for model, kind in ((1000, "report"), (size, "failed")):
            for files in ([[f"{small}/model", model, 1, None], data], [data, [f"{small}/m", model, 1, None]]):
                answer = run_program(tmp_path, "make", files=files, cache=f"{small}/cache")
                assert answer["kind"] == kind, answer


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_what_stands_in_the_way_of_a_folder_is_named_before_a_copy(kind: str, tmp_path: Path) -> None:
    way = tmp_path / "way"
    way.write_text("x") if kind == "a file" else way.symlink_to(tmp_path / "nothing")
    said = run_program(tmp_path, "make", files=[file_of(way / "data/a", b"a"), file_of(way / "data/b", b"b")])
    assert said["kind"] == "failed" and said["what"].startswith(f"{way} ") and said["hint"]


def test_a_file_of_another_time_is_compared_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"same")
    asked = run_program(tmp_path, "make", files=[file_of(tmp_path / "f", b"same", digest=False)])
    assert asked["lacks"] == {"hashes": [0]}
    assert run_program(tmp_path, "make", {}, files=[file_of(tmp_path / "f", b"same")])["lacks"] == {}


def test_compiled_code_is_kept_in_folders_of_ones_own(tmp_path: Path) -> None:
    """Somebody else's link or folder that others may write to is refused: kernels are run from it."""
    for new in (True, False):
        assert run_program(tmp_path, "scratch", folders=[[str(tmp_path), "own", "k"]])["new"] is new
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name, mode in (("group", 0o720), ("others", 0o702)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    for name in ("link", "group", "others"):
        failed = run_program(tmp_path, "scratch", folders=[[str(tmp_path), name, "k"]])
        assert "not ours alone" in failed["what"]


def test_one_builds_while_the_others_wait(tmp_path: Path) -> None:
    """Who comes second learns of it, and goes on once the first one has ended, however it did."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, 2); print(); sys.stdin.read()"
    argv = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        try:
            with provision.locked(str(tmp_path / "lock"), other.kill):
                assert other.wait(30) == -signal.SIGKILL
        finally:
            other.kill()


def test_what_was_fetched_is_fetched_again_where_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_RANK", "0")
    monkeypatch.setenv("MUSTER_EVENTS", str(tmp_path))
    host = provision.Provision({"cache": str(tmp_path / "cache")}, str(tmp_path))
    weights = tmp_path / "hub" / "weights"
    weights.parent.mkdir()

    def download(argv: list[str]) -> tuple[int, list[str]]:
        weights.write_text("w")
        return 0, [json.dumps({"folder": str(weights.parent)})]

    monkeypatch.setattr(host, "program", download)
    statuses = [host.fetch("python", "model", "org/m")["status"] for _ in range(2)]
    weights.write_text("cut off")
    statuses.append(host.fetch("python", "model", "org/m")["status"])
    assert statuses == ["downloaded", "present", "downloaded"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    venv = tmp_path / "precious"
    venv.mkdir()
    (venv / "thesis").write_text("years")

    def what() -> str:
        return str(run_program(tmp_path, "make", environment=environment(venv))["what"])

    assert "was not made by muster prepare" in what()
    (venv / "muster-complete.json").write_text(json.dumps({"key": "another"}))
    assert "other requirements" in what()
    (venv / "muster-complete.json").write_text("not JSON")
    assert "was not made by muster prepare" in what()
    assert (venv / "thesis").read_text() == "years"


def test_what_an_interrupted_build_left_is_built_again(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "half").write_text("made")
    (tmp_path / "venv.building").write_text("{}")
    report = run_program(tmp_path, "make", environment=environment(venv))
    assert report["environment"]["status"] == "built"
    assert not (venv / "half").exists() and not (tmp_path / "venv.building").exists()


def test_uv_gets_pips_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over the user's file, and that over none; uv's own variables stay."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n  https://b\n  https://c\n"
        "find-links = /w /x\n[install]\nindex-url = https://d/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "a")
    monkeypatch.setenv("UV_FIND_LINKS", "/own")
    made = provision.install_environment(None, offline=False)
    shown = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_INSECURE_HOST")
    assert [made[name] for name in shown] == ["https://d/simple", "https://b https://c", "/own", "a"]
    given = provision.install_environment("https://me:hush@i/simple", offline=False)
    assert given["UV_DEFAULT_INDEX"] == given["PIP_INDEX_URL"] == "https://me:hush@i/simple"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["Using Python 3.11", "\u00d7 No solution found:", "\u2570\u2500\u25b6 there is no tinya==9"],
            "No solution found: there is no tinya==9",
        ),
        (["error: Failed to fetch", "Caused by: no route"], "error: Failed to fetch Caused by: no route"),
        (["Collecting x", "ERROR: No matching distribution found for x", "notice"],
         "No matching distribution found for x"),
        ([], "no reason given"),
    ],
)  # fmt: skip
def test_what_uv_and_pip_say_of_a_failure(lines: list[str], words: str) -> None:
    assert provision.last_words(lines) == words


def test_the_program_is_for_bare_hosts() -> None:
    """It imports the standard library alone."""
    lines = re.findall(r"^(?:import|from) (\w+)", PROGRAM.read_text(), re.MULTILINE)
    assert set(lines) <= set(sys.stdlib_module_names)


def test_a_command_has_no_step_to_warm_up_with(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("command: ['true']\nrun: {start: host}\n")
    inputs, options = read_inputs(str(recipe), "local:1", []), Options(environment=False)
    assert not plan_as_dict(make_plan([inputs], options), [inputs], options)["warm"]


def test_a_plan_names_all_that_a_step_of_rlhf_reads(tmp_path: Path, options: Options) -> None:
    """A mix's files and hub sets, the reward model, the critic, and the file of a reward function."""
    for name in ("reward", "critic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "own.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 4)
    (tmp_path / "worth.py").write_text(
        "def length(prompts, answers, expected): return [0.0] * len(answers)\n"
    )
    recipe = tmp_path / "third.yaml"
    recipe.write_text(
        "inherit: ppo\n"
        "model: {name: org/actor, init: pretrained, tokenizer: org/words}\n"
        f"reward: {{model: {tmp_path}/reward, function: 'worth.py:length'}}\n"
        "ppo: {critic: org/critic}\n"
        "data: {mix: [{path: own.jsonl}, {name: org/chats, subset: small}, {name: /gone/set}]}\n"
    )
    plan = make_plan([read_inputs(str(recipe), "node1", [])], options)
    assert plan.local == tuple(f"{tmp_path}/{name}" for name in ("reward", "own.jsonl", "worth.py"))
    assert set(plan.hub) == {
        ("model", "org/actor"), ("tokenizer", "org/words"), ("model", "org/critic"),
        ("dataset", "org/chats:small"),
    }  # fmt: skip
    assert [note.partition(" ")[0] for note in plan.notes] == ["/gone/set"]


def test_a_mix_of_hub_names_is_looked_for_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe = read_recipe("sft", ["data={mix: [{name: org/chats}]}", "model.init=random"])
    with pytest.raises(RecipeError, match="org/chats") as told:
        check_names(recipe, {})
    assert told.value.where == "data.mix"


def test_a_pipeline_is_prepared_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """What all of its steps read; models that its steps train are not there yet."""
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "node1", "rlhf-demo", "--dry-run", "--no-env"])
    assert ended.value.code == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["warm"]
    assert plan["hosts"] == ["node1"]
    assert not any("not on this machine" in note for note in plan["notes"])
    assert all(tempfile.gettempdir() not in each for each in plan["copy"])


def test_links_below_a_path_are_followed(options: Options, tmp_path: Path) -> None:
    """To files and folders elsewhere; one that leads back to where it stands ends there."""
    data, far = tmp_path / "data", tmp_path / "far"
    (far / "deep").mkdir(parents=True)
    data.mkdir()
    samples = "".join(f'{{"question": "{question}", "sql": "s"}}\n' for question in "pq")
    (far / "one.jsonl").write_text(samples)
    (far / "deep" / "back").symlink_to(far)
    (data / "train.jsonl").symlink_to(far / "one.jsonl")
    (data / "more").symlink_to(far)
    plan = make_plan([read_inputs("demo", "node1", [f"data.path={data}"])], options)
    assert [str(each.path.relative_to(data)) for each in plan.files()] == ["more/one.jsonl", "train.jsonl"]
    assert {each.size for each in plan.files()} == {len(samples)}
    os.mkfifo(far / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        plan.files()


def test_a_folder_that_cannot_be_read_is_named(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "closed").mkdir(parents=True)
    plan = make_plan([read_inputs("demo", "node1", [f"model.name={tmp_path / 'model'}"])], options)
    listed = Path.iterdir

    def list_folder(path: Path) -> Iterator[Path]:  # as for whoever is not root
        if path.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", list_folder)
    with pytest.raises(UsageError, match="cannot be read") as refused:
        plan.files()
    assert refused.value.where == str(tmp_path / "model" / "closed")


def test_recipes_are_prepared_together(options: Options, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        samples = [f'{{"question": "{question}", "sql": "s"}}\n' for question in "pq"]
        (tmp_path / name / "train.jsonl").write_text("".join(samples))
    recipes = [
        read_inputs("demo", "node1", [f"data.path={tmp_path}/{name}", f"model.tokenizer=org/{name}"])
        for name in "aba"
    ]
    plan = make_plan(recipes, options)
    assert plan.local == (f"{tmp_path}/a", f"{tmp_path}/b")
    assert plan.hub == (("tokenizer", "org/a"), ("tokenizer", "org/b"))
    assert [each.path.name for each in plan.files()] == ["train.jsonl"] * 2
    later = make_plan(recipes, options, later=tmp_path / "b")
    assert later.local == plan.local  # the folder itself is no model of a step
    model = recipes[0].recipe.model.model_copy(update={"name": str(tmp_path / "steps/one/model")})
    step = replace(recipes[0], recipe=recipes[0].recipe.model_copy(update={"model": model}))
    plan = make_plan([recipes[0], step], replace(options, warm=True), later=tmp_path / "steps")
    assert plan.warm == (recipes[0],) and not plan.notes  # the other starts from what the first will train


def test_a_file_that_changes_while_it_is_copied_is_named(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(f'{{"prompt": "{each}", "response": "b"}}\n' for each in range(20)))

    def run(jobs: HostJobs, op: str, tree: Tree | None = None, **order: Any) -> dict[str, Any]:
        if tree is None:
            return {"lacks": {"files": [0]}}
        file.write_text("less")
        raise HostError("a file came damaged", host="node1")

    monkeypatch.setattr(HostJobs, "run", run)
    recipe = read_inputs("sft", "node1:1", [f"data.path={file}", "launch.launcher=ssh"])
    host = provision_hosts([recipe], options).hosts[0]
    assert host.failure and str(file) in str(host.failure["what"]) and host.failure["hint"]


def test_contents_that_have_their_places_go_though_the_warm_job_fails(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(f'{{"prompt": "{each}", "response": "b"}}\n' for each in range(20)))
    forgotten: list[str] = []

    def run(jobs: HostJobs, op: str, tree: Tree | None = None, **order: Any) -> dict[str, Any]:
        forgotten.extend(order.get("forget", ()))
        if op == "make" and tree is None:
            return {"lacks": {"files": [0]}}
        there = {"status": "present", "python": "/p", "digest": "d", "seconds": 0, "about": about(a="1")}
        kept = {"home_is_remote": False, "uid": 0, "marks": []}
        return {"lacks": {}, "environment": there, "copied": [0], "fetched": [], **kept}

    def fail(warmer: WarmJob, host: Host) -> str:
        raise HostError("out of memory", host=host.label)

    monkeypatch.setattr(HostJobs, "run", run)
    monkeypatch.setattr(WarmJob, "run", fail)
    recipe = read_inputs(
        "sft", "node1:1", [f"data.path={file}", "launch.launcher=ssh", "model.name=null", "model.init=random"]
    )
    host = provision_hosts([recipe], options).hosts[0]
    assert host.failure and host.failure["what"] == "out of memory"
    assert forgotten == [hashlib.sha256(file.read_bytes()).hexdigest()]


def test_each_step_is_prepared_with_its_own_variables(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one's token fetches what it reads; a folder for kernels that a step has is its own."""
    asked: list[tuple[str, Any, Any]] = []

    def run(
        jobs: HostJobs, op: str, tree: Tree | None = None, env: Any = None, **order: Any
    ) -> dict[str, Any]:
        if "hub" in order:
            asked.append((op, env, [name for _, name in order["hub"]]))
        there = {"status": "present", "python": "/p", "digest": "d", "seconds": 0, "about": about(a="1")}
        kept = {"home_is_remote": False, "uid": 0, "marks": []}
        fetched = [{"status": "present"} for _ in order.get("hub", ())]
        return {"lacks": {}, "environment": there, "copied": [], "fetched": fetched, "new": False, **kept}

    monkeypatch.setattr(HostJobs, "run", run)
    recipes = [
        read_inputs("demo", "node1", ["model.tokenizer=org/a"]),
        read_inputs(
            "demo", "node1", ["model.tokenizer=org/b", "env.HF_TOKEN=b", "env.TRITON_CACHE_DIR=/own"]
        ),
        read_inputs("demo", "node1", ["model.tokenizer=org/c"]),
    ]
    made = provision_hosts(recipes, replace(options, warm=False))
    own = {"HF_TOKEN": "b", "TRITON_CACHE_DIR": "/own"}
    assert asked == [("make", None, ["org/a", "org/c"]), ("fetch", own, ["org/b"])]
    copied = [each["what"] for each in made.hosts[0].copied]
    assert copied == ["tokenizer org/a", "tokenizer org/c", "tokenizer org/b"]
    assert not any("TRITON_CACHE_DIR" in each for each in made.use)


def test_a_host_does_not_pay_for_the_time_of_others(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes an hour leaves the others, which wait for it between two jobs, all of their time."""
    clock = [0.0]
    limits: dict[str, list[float]] = {"local0": [], "local1": []}

    class Greeted:
        """Of a supervisor, what says how long a job may take."""

        def __init__(self, places: tuple[Placement, ...], *_: object) -> None:
            self.host = places[0].host

        def __enter__(self) -> Greeted:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def greet(self, specs: dict[str, dict[str, Any]]) -> None:
            limits[self.host].append(specs[self.host]["timeout"])
            clock[0] += 3600 if self.host == "local0" else 1
            raise HostError("enough", host=self.host)

    monkeypatch.setattr(prepare_host, "Supervisor", Greeted)
    monkeypatch.setattr(prepare_host.time, "monotonic", lambda: clock[0])
    recipe = read_inputs("demo", "local:2x1", [])
    options = Options(environment=False)
    jobs = [
        HostJobs(host, recipe, make_plan([recipe], options), options, lambda *_: None, lambda: None)
        for host in recipe.inventory.hosts
    ]
    for each in (*jobs, *jobs):
        with pytest.raises(HostError, match="enough"):
            each.run("make")
    assert limits == {"local0": [7200, 3600], "local1": [7200, 7199]}
