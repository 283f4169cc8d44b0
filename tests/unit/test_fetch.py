"""Model and profiles from a host without a shared folder: whole, or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.core.batch import Batch
from muster.core.errors import HostError
from muster.core.inventory import Host
from muster.core.job import Job, Placement, place
from muster.core.launch import Launch
from muster.fleet import fetch as fetch_module
from muster.fleet.fetch import ATTEMPTS, copy_between, fetch_model, fetch_profiles
from muster.fleet.launchers import ssh
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.shell import FakeShell

MARK = b"--- muster: the model follows ---\n"
NODE = Placement("node1", "me@node1", 1, 0)


def remote(place: Placement, argv: list[str]) -> list[str]:
    return ssh.remote(place, Launch(), argv)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "PAUSE", 0.0)


def packed(names: Sequence[str], link: str | None = None) -> bytes:
    """A tar with small files of these names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"data"))
        if link:
            info = tarfile.TarInfo("model/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
    return buffer.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    return run


def fetch(run: RunFolder, code: int, out: bytes, err: bytes = b"") -> None:
    shell = FakeShell(answer_run=lambda argv: (code, out, err)).use()
    try:
        fetch_model(remote, NODE, "/base with space", run)
    finally:
        assert sorted(path.name for path in run.path.iterdir()) in (["logs"], ["logs", "model"])
        assert "'/base with space'" in shell.started[0][-1]


def test_a_model_after_the_noise_of_a_login_script(run: RunFolder) -> None:
    fetch(run, 0, b"Welcome!\nno newline" + MARK + packed(["model/config.json", "model/a/b.bin"]))
    assert (run.model / "config.json").read_bytes() == b"data"
    assert (run.model / "a" / "b.bin").read_bytes() == b"data"


FULL = b"tar: cannot write: No space left on device\n"


@pytest.mark.parametrize(
    ("out", "err", "why"),
    [
        pytest.param(b"", b"", "", id="nothing"),
        pytest.param(b"Welcome!\n", b"", "", id="noise"),
        pytest.param(MARK, b"", "", id="mark alone"),
        pytest.param(MARK + b"not a tar at all, but as long as one" * 50, b"", "", id="no tar"),
        pytest.param(MARK + packed(["model/config.json", "model/big"])[:700], b"", "", id="cut short"),
        pytest.param(MARK + packed(["model/../../escape"]), b"", "", id="dots"),
        pytest.param(MARK + packed(["/tmp/escape"]), b"", "", id="absolute"),
        pytest.param(MARK + packed(["model/config.json"], link="/etc/passwd"), b"", "", id="a link"),
        pytest.param(
            MARK + packed(["model/config.json"], link="config.json"), b"", "", id="a link to its own file"
        ),
        pytest.param(MARK + packed(["other/config.json"]), b"", "", id="no model"),
        pytest.param(MARK, FULL, "No space left", id="the host says why"),
        pytest.param(
            MARK, FULL + b"tar: Exiting with failure status due to previous errors\n", "No space left",
            id="GNU tar's last line gives no reason",
        ),
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_nothing_stays(out: bytes, err: bytes, why: str, run: RunFolder) -> None:
    with pytest.raises(HostError, match="the model could not be fetched") as caught:
        fetch(run, 2 if err else 0, out, err)
    assert caught.value.host == "node1" and why in caught.value.what
    assert "it is still there: me@node1:'/base with space'/model" in (caught.value.hint or "")
    assert not run.model.exists()


@pytest.mark.parametrize("broken", range(ATTEMPTS + 1))
def test_a_connection_that_breaks_is_tried_again(broken: int, run: RunFolder) -> None:
    """So many times it breaks in the middle of the model; then it holds."""
    whole = MARK + packed(["model/config.json", "model/big"])
    answers = iter([(255, whole[:700], b"Connection closed\n")] * broken + [(0, whole, b"")])
    shell = FakeShell(answer_run=lambda argv: next(answers)).use()
    if broken == ATTEMPTS:
        with pytest.raises(HostError, match="could not be fetched: Connection closed"):
            fetch_model(remote, NODE, "/base", run)
        assert not run.model.exists()
    else:
        fetch_model(remote, NODE, "/base", run)
        assert (run.model / "big").read_bytes() == b"data"
    assert len(shell.started) == min(broken + 1, ATTEMPTS)
    assert not list(run.path.glob("model.*"))


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_was_fetched_before_is_replaced(whole: bool, tmp_path: Path) -> None:
    """By a controller that died before the end was written; what does not come whole replaces nothing."""
    run = RunFolder(tmp_path / "run")
    for name in ("model", "model.before"):
        (run.path / name).mkdir(parents=True)
        (run.path / name / "old").write_text("of the first attempt")
    shell = FakeShell(
        answer_run=lambda argv: (0, MARK + packed(["model/new" if whole else "other/new"]), b"")
    ).use()
    if whole:
        fetch_model(remote, NODE, "/base", run)
    else:
        with pytest.raises(HostError, match="could not be fetched: what came has no model"):
            fetch_model(remote, NODE, "/base", run)
    assert [path.name for path in run.model.iterdir()] == ["new" if whole else "old"]
    assert len(shell.started) == (1 if whole else ATTEMPTS)
    assert whole != (run.path / "model.before").exists()


# --- profiles ----------------------------------------------------------------------------------------------


def profiled(host: str, rank: int) -> events.Profiled:
    path = f"/far/base/profile/trace-rank{rank}.json.gz"
    return events.Profiled(
        time=1, host=host, rank=rank, what="trace", first_step=5, last_step=5, path=path, bytes=4
    )


def fetched_profiles(run: RunFolder, answer: object, *, shared: bool = False) -> list[str]:
    """Two hosts, a rank each; the run folder has the first one's profile already."""
    run.profile.mkdir()
    (run.profile / "trace-rank0.json.gz").write_bytes(b"here")
    places = place([(Host("node0"), 1), (Host("node1"), 1)])
    job = Job("one", "ssh", places, Batch(1, 1, 2), "fp32", "cpu", {})
    facts = {
        "node0": {"shared": True, "base": str(run.path)},
        "node1": {"shared": shared, "base": "/far/base"},
    }
    told = [profiled("node0", 0), profiled("node1", 1)]
    shell = FakeShell(answer_run=lambda argv: answer).use()  # type: ignore[arg-type, return-value]
    fetch_profiles(remote, job, facts, run, told)
    assert len(shell.started) == (0 if shared else 1)
    assert sorted(path.name for path in run.path.iterdir()) == ["logs", "profile"]
    return [event.path for event in told]


def test_profiles_come_beside_those_that_are_there(run: RunFolder) -> None:
    paths = fetched_profiles(run, (0, MARK + packed(["profile/trace-rank1.json.gz"]), b""))
    assert (run.profile / "trace-rank0.json.gz").read_bytes() == b"here"
    assert (run.profile / "trace-rank1.json.gz").read_bytes() == b"data"
    assert paths[1] == str(run.profile / "trace-rank1.json.gz")


@pytest.mark.parametrize(
    ("answer", "shared"),
    [((255, b"", b"connection refused"), False), ((0, b"noise", b""), False), (None, True)],
)
def test_where_a_host_is_not_asked_its_place_is_told(answer: object, shared: bool, run: RunFolder) -> None:
    """It cannot be, or shares the folder: then the path is as it is."""
    here, there = (f"/far/base/profile/trace-rank{rank}.json.gz" for rank in (0, 1))
    assert fetched_profiles(run, answer, shared=shared) == [here, there if shared else f"node1:{there}"]


def test_a_checkpoint_goes_from_one_host_to_another(tmp_path: Path) -> None:
    """With real processes, after a login script's noise; what was there half is replaced, whole."""

    def noisy(place: Placement, argv: list[str]) -> list[str]:
        return ["sh", "-c", 'echo hello; exec "$@"', "sh", *argv]

    there, here = tmp_path / "a base", tmp_path / "b" / "checkpoints"
    (there / "checkpoint-4" / "global_step4").mkdir(parents=True)
    content = bytes(range(256)) * 4000
    (there / "checkpoint-4" / "global_step4" / "rank0.pt").write_bytes(content)
    (here / "checkpoint-4").mkdir(parents=True)
    (here / "checkpoint-4" / "stale").touch()
    ends = (NODE, str(there)), (NODE, str(here))
    copy_between(noisy, *ends, "checkpoint-4")
    assert [path.name for path in here.iterdir()] == ["checkpoint-4"]
    assert [path.name for path in (here / "checkpoint-4").iterdir()] == ["global_step4"]
    assert (here / "checkpoint-4" / "global_step4" / "rank0.pt").read_bytes() == content
    with pytest.raises(HostError, match=r"checkpoint-5 cannot be copied: .*No such file"):
        copy_between(noisy, *ends, "checkpoint-5")


@pytest.mark.parametrize("broken", ["node1", "node2"])
def test_the_host_whose_end_of_a_copy_broke_is_named(broken: str, tmp_path: Path) -> None:
    """With its own words: what the other one says comes of it."""
    (tmp_path / "there" / "checkpoint-4").mkdir(parents=True)
    (tmp_path / "there" / "checkpoint-4" / "weights").write_bytes(bytes(1 << 23))

    def breaking(place: Placement, argv: list[str]) -> list[str]:
        return ["sh", "-c", "echo Connection refused >&2; exit 255"] if place.host == broken else argv

    ends = (NODE, str(tmp_path / "there")), (Placement("node2", "node2", 1, 1), str(tmp_path / "here"))
    with pytest.raises(HostError, match="cannot be copied: Connection refused") as caught:
        copy_between(breaking, *ends, "checkpoint-4")
    assert caught.value.host == broken
    assert not (tmp_path / "here" / "checkpoint-4").exists()


def test_a_model_that_came_damaged_is_fetched_again(run: RunFolder) -> None:
    """The rank that saved it said what its files are."""
    came = [packed(["model/a"]).replace(b"data", b"dat_"), packed(["model/a"])]
    FakeShell(answer_run=lambda argv: (0, MARK + came.pop(0), b"")).use()
    files = {"a": {"bytes": 4, "sha256": hashlib.sha256(b"data").hexdigest()}}
    fetch_model(remote, NODE, "/base", run, files)
    assert (run.model / "a").read_bytes() == b"data" and not came
