"""Provision: what is pinned, what is planned, how environments are compared, and the host's own program."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from muster.agent.provision import REMOTE
from muster.checks.families import disk
from muster.cli.app import main
from muster.core.errors import HostError, JobError, RecipeError, UsageError
from muster.core.inventory import Host as Named
from muster.fleet.shell import Shell
from muster.inputs.hub import check_names
from muster.inputs.read import read_inputs, read_recipe
from muster.prepare.pinned import pinned_here, read_requirements
from muster.prepare.plan import Options, make_plan, plan_as_dict
from muster.prepare.prepare import waypoint
from muster.prepare.result import differences
from muster.prepare.session import PackedFile, Tree, safe_path
from muster.prepare.warm import Warmer, kernel_folders, warm_recipe
from muster.store.runfolder import RunFolder
from tests.wheels import PROGRAM, Host, environment, make_wheel

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
    plan = make_plan(inputs, options)
    assert plan.local == (str(model), str(data))
    assert plan.hub == ()
    assert plan.venv == f"~/.cache/muster/venvs/{plan.key}"
    name = hashlib.sha256((tmp_path / "wheels/tinya-1.0-py3-none-any.whl").read_bytes()).hexdigest()[:16]
    assert [entry.path for entry in plan.wheels] == [f"{name}/tinya-1.0-py3-none-any.whl"]
    json.dumps(plan_as_dict(plan, inputs, options))
    assert (
        make_plan(read_inputs("demo", "local:2x1", overrides), options).local == ()
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
    plan = make_plan(read_inputs("demo", "node1", ["model.tokenizer=train", *overrides]), options)
    assert list(plan.hub) == hub


def test_the_configuration_of_a_hub_data_set_is_fetched(options: Options) -> None:
    inputs = read_inputs("causal-lm", "node1", ["data.library=null", "data.name=org/set", "data.subset=raw"])
    assert ("dataset", "org/set:raw") in make_plan(inputs, options).hub


@pytest.mark.parametrize("index", ["--trusted-host", "ftp://x", "simple", "https://a b"])
def test_an_index_is_an_address(options: Options, index: str) -> None:
    with pytest.raises(UsageError, match="is not an index"):
        make_plan(read_inputs("demo", "node1", []), Options(index=index, requirements=options.requirements))


def test_a_dry_run_hides_an_index_password(options: Options) -> None:
    given = Options(index="https://me:hush@host/simple", requirements=options.requirements)
    inputs = read_inputs("demo", "node1", [])
    assert "hush" not in json.dumps(plan_as_dict(make_plan(inputs, given), inputs, given))


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


def test_what_the_warm_job_wrote_on_a_host_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that the host knows it by: the job's own, with the mark of its run folder."""
    runs, asked = [], []

    class Remote:
        host = "node1"

        def ask(self, op: str, **content: Any) -> Iterator[dict[str, Any]]:
            asked.append((op, content.get("name")))
            yield from ()
            return {"content": None, "removed": 0}

    def job(self: Warmer, host: Named, name: str) -> Iterator[None]:
        runs.append(RunFolder(self.folder / name))
        runs[0].create(mark="7e")
        yield

    monkeypatch.setattr(Warmer, "_train", job)
    inputs = read_inputs("demo", "node1", [])
    warmer = Warmer(inputs, [], "~/c", 60, tmp_path, "t", Shell(), lambda *_: None)
    for _ in warmer.warm(Remote(), Named("node1", 1), "d", again=False):  # type: ignore[arg-type]
        pass
    assert runs[0].elsewhere == "warm-t-1-7e"
    assert ("remove", "warm-t-1-7e") in asked


def test_kernels_stay_off_network_file_systems() -> None:
    """Where a home is on one, both caches go to the host's own disk; what the recipe sets stays."""
    far = {"node1": {"home_is_remote": True, "uid": 7}, "node2": {"home_is_remote": False, "uid": 7}}
    near = {"node1": {"home_is_remote": False, "uid": 7}}
    assert kernel_folders(near, {}, None, "d" * 64) == {}
    found = kernel_folders(far, {"TRITON_CACHE_DIR": "/mine"}, None, "d" * 64)
    assert found == {"TORCH_EXTENSIONS_DIR": ("/tmp", "muster-7", "d" * 16, "torch_extensions")}
    assert set(kernel_folders(near, {}, "/scratch", "d" * 64)) == {"TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}


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


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    started = Host(tmp_path)
    yield started
    assert started.close() == 0


def entry(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_files_arrive_whole_and_once(host: Host, tmp_path: Path) -> None:
    """Hostile names, an empty file, a link that stays inside; the second time nothing."""
    root = tmp_path / "to $(here)"
    contents = {"a b\n;'\".txt": b"one", "deep/er/two": b"2" * 70_000, "empty": b""}
    files = [entry(name, data) for name, data in contents.items()]
    files.append({"path": "deep/link", "link": "../empty"})
    request = {"root": ["path", str(root)], "marker": "m", "files": files}
    opened = host.ask("compare", **request)
    assert opened["lacks"] == [[0, 0], [1, 0], [2, 0]]
    assert not [each.name for each in tmp_path.iterdir() if ".muster" in each.name]  # the lock is its own
    assert (root / ".muster-tree.lock").exists()
    for index, data in enumerate(contents.values()):
        host.put(index, data[:10])
        if data[10:]:
            host.put(index, data[10:])
    assert host.ask("seal")["count"] == 3
    assert {name: (root / name).read_bytes() for name in contents} == contents
    assert (root / "deep/link").readlink() == Path("../empty")
    assert host.ask("compare", **request)["lacks"] == []
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if ".muster" in p.name}
    assert left == set()  # neither parts nor locks


def test_a_tree_that_passes_through_has_a_folder_beside_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with waypoint(Tree(("hub", "x"), "m", (PackedFile("a", 5, ""),)), "model x") as folder:
        assert folder.parent == tmp_path / ".cache/muster"
        (folder / "a").write_text("12345")
    assert not folder.exists()
    huge = Tree(("hub", "x"), "m", (PackedFile("a", 1 << 60, ""),))
    with pytest.raises(JobError, match=r"model x needs 1152.9 PB here on its way, and .* are free"):
        waypoint(huge, "model x").__enter__()


def test_one_list_of_shared_file_systems() -> None:
    """What is shipped to hosts is one file each, so the list stands in both."""
    assert disk._NETWORK == REMOTE
    for kind in ("nfs4", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "wekafs", "pvfs2", "smb3"):
        assert kind.startswith(REMOTE)
    assert not any(
        kind.startswith(REMOTE) for kind in ("ext4", "xfs", "tmpfs", "overlay", "zfs", "fuse.snapfuse")
    )


def test_a_cut_file_goes_on_where_it_was(host: Host, tmp_path: Path) -> None:
    """Its program is killed in the middle; what had come is not sent again."""
    data = os.urandom(300_000)
    request = {"root": ["path", str(tmp_path / "data/file.bin")], "marker": "m", "files": [entry("", data)]}
    assert host.ask("compare", **request)["lacks"] == [[0, 0]]
    host.put(0, data[:200_000])
    host.ask("noted", marker="x")  # an answer: what came before it has been taken
    host.process.kill()
    host.process.wait()
    again = Host(tmp_path)
    assert again.ask("compare", **request)["lacks"] == [[0, 200_000]]
    again.put(0, data[200_000:])
    assert again.ask("seal")["bytes"] == 100_000
    assert (tmp_path / "data/file.bin").read_bytes() == data
    assert again.close() == 0
    host.close = lambda: 0  # type: ignore[method-assign]  # it is gone already


def test_a_damaged_file_is_not_kept(host: Host, tmp_path: Path) -> None:
    root = tmp_path / "data"
    request = {"root": ["path", str(root)], "marker": "m", "files": [entry("f", b"right")]}
    host.ask("compare", **request)
    host.put(0, b"wrong")
    assert "did not arrive as it was sent" in host.ask("seal")["error"]
    assert list(root.iterdir()) == []


def test_what_is_there_and_differs_is_never_written_over(host: Host, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/f").write_bytes(b"mine!")
    files = [entry("f", b"other"), entry("g", b"new")]
    reply = host.ask("compare", root=["path", str(tmp_path / "data")], marker="m", files=files)
    assert f"{tmp_path}/data/f differs" in reply["error"]
    assert (tmp_path / "data/f").read_bytes() == b"mine!"
    assert not (tmp_path / "data/g").exists()


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/out", "a//b", ".", "a/\0b"])
def test_no_name_leads_out_of_the_folder(host: Host, tmp_path: Path, path: str) -> None:
    reply = host.ask("compare", root=["path", str(tmp_path / "data")], marker="m", files=[entry(path, b"x")])
    assert "is not a path inside a folder" in reply["error"]
    assert not (tmp_path / "out").exists()
    if path != ".":
        with pytest.raises(HostError, match="not inside its folder"):
            safe_path(path if "//" not in path else "/a", host="node1")


def test_no_link_leads_out_of_the_folder(host: Host, tmp_path: Path) -> None:
    """Neither one that is there, nor one that is sent."""
    outside, root = tmp_path / "outside", tmp_path / "data"
    outside.mkdir()
    root.mkdir()
    (root / "sub").symlink_to(outside)
    files = [entry("sub/f", b"x")]
    request = {"root": ["path", str(root)], "marker": "m", "files": files}
    host.ask("compare", **request)
    host.put(0, b"x")
    assert "is a link" in host.ask("seal")["error"]
    assert list(outside.iterdir()) == []
    for target in ("../../etc/passwd", "/etc/passwd"):
        request = {"root": ["path", str(tmp_path / "other")], "marker": "m"}
        host.ask("compare", **request, files=[{"path": "l", "link": target}])
        assert "would lead out" in host.ask("seal")["error"]
    assert not (tmp_path / "other/l").is_symlink()


def test_a_scan_keeps_links_that_stay_and_follows_those_that_leave(host: Host, tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "blobs").mkdir(parents=True)
    (root / "blobs/b1").write_bytes(b"blob")
    (root / "inside").symlink_to("blobs/b1")
    (tmp_path / "far").write_bytes(b"far away")
    (root / "leaves").symlink_to(tmp_path / "far")
    files = {each["path"]: each for each in host.ask("scan", root=["path", str(root)], marker="s")["files"]}
    assert files["inside"] == {"path": "inside", "link": "blobs/b1"}
    assert files["leaves"]["sha256"] == hashlib.sha256(b"far away").hexdigest()
    os.mkfifo(root / "pipe")
    assert "neither a file nor a folder" in host.ask("scan", root=["path", str(root)], marker="s")["error"]


def test_compiled_code_is_kept_in_folders_of_ones_own(host: Host, tmp_path: Path) -> None:
    """Somebody else's link or folder that others may write to is refused: kernels are run from it."""
    assert host.ask("scratch", base=str(tmp_path), parts=["own", "k"])["new"]
    assert not host.ask("scratch", base=str(tmp_path), parts=["own", "k"])["new"]
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        assert "not ours alone" in host.ask("scratch", base=str(tmp_path), parts=[name, "k"])["error"]


def test_a_stale_lock_of_a_killed_build_goes(host: Host, tmp_path: Path) -> None:
    """PyTorch's own kind of lock: a file that its holder keeps open. A living builder's stays."""
    torch_extensions = tmp_path / "kernels [x]"
    held, stale = (torch_extensions / name / "lock" for name in ("fused_adam", "py311_cpu/cpu_adam"))
    for lock in (held, stale):
        lock.parent.mkdir(parents=True)
        lock.touch()
    with held.open():
        reply = host.ask("unlock", env={"TORCH_EXTENSIONS_DIR": str(torch_extensions)})
    assert reply["removed"] == [str(stale)]
    assert (held.exists(), stale.exists()) == (True, False)


def test_a_folder_of_somebody_else_is_left_alone(host: Host, tmp_path: Path) -> None:
    venv = tmp_path / "precious"
    venv.mkdir()
    (venv / "thesis").write_text("years")
    assert "was not made by muster prepare" in host.ask("environment", **environment(venv))["error"]
    (venv / "muster-complete.json").write_text(json.dumps({"key": "another"}))
    assert "other requirements" in host.ask("environment", **environment(venv))["error"]
    (venv / "muster-complete.json").write_text("not JSON")
    assert "was not made by muster prepare" in host.ask("environment", **environment(venv))["error"]
    assert (venv / "thesis").read_text() == "years"


def test_without_pip_the_remedy_is_said(host: Host, tmp_path: Path) -> None:
    """Debian's python3 without python3-venv."""
    request = {**environment(tmp_path / "venv"), "lacks": "ensurepip", "version": "3.11.2"}
    reply = host.ask("environment", **request)
    assert "no pip and no ensurepip" in reply["error"]
    assert "apt install python3.11-venv" in reply["hint"]


def test_the_program_is_for_bare_hosts() -> None:
    """It imports the standard library alone."""
    lines = re.findall(r"^(?:import|from) (\w+)", PROGRAM.read_text(), re.MULTILINE)
    assert set(lines) <= set(sys.stdlib_module_names)


def test_a_command_has_no_step_to_warm_up_with(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("command: ['true']\n")
    inputs, options = read_inputs(str(recipe), "local:1", []), Options(environment=False)
    assert not plan_as_dict(make_plan(inputs, options), inputs, options)["warm"]


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
    plan = make_plan(read_inputs(str(recipe), "node1", []), options)
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


def test_a_pipeline_names_its_steps_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "node1", "rlhf-demo", "--dry-run"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is a pipeline" in said and "did you mean" not in said
