"""What the agent says of a host's NVIDIA GPUs: real calls into a library that tells what a file lists."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.agent import gpu as nvml
from muster.agent.gpu import Nvml, gpu_facts, gpu_files
from muster.agent.talk import Problem

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake library, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).parents[1] / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


Host = Callable[..., None]


@pytest.fixture
def host(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """host(lines..., there=GPUs of the kernel, mask=CUDA_VISIBLE_DEVICES) makes this one a host like that."""

    def make(*lines: str, there: int = 0, mask: str | None = None) -> None:
        (tmp_path / "gpus").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus"))
        monkeypatch.setattr(nvml, "NVML", ("libmuster-none.so.1", str(library)))
        monkeypatch.setattr(nvml, "gpu_files", lambda usable: there)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if mask is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)

    return make


def gpu(letter: str, code: int = 0, name: str = H100, memory: int = 81_559) -> str:
    return f"gpu GPU-{letter * 8}-0000-0000-0000-000000000000 {memory} 9.0 {code} {name}"


EIGHT = [gpu(letter, name=f"{H100} {letter}") for letter in "abcdefgh"]


def test_a_gpu_in_figures(host: Host) -> None:
    host(gpu("a"), there=1)
    assert gpu_facts() == [{"name": H100, "memory_total": 81_559 << 20, "capability": [9, 0]}]


@pytest.mark.parametrize(
    ("lost", "mask", "letters"),
    [
        (False, None, "abcdefgh"),
        (False, "0,3", "ad"),
        (False, "3,0", "da"),
        (False, "", ""),
        (False, "-1", ""),
        (False, "1,-1,2", "b"),  # CUDA ends its list at the first that names none
        (False, "1,8,2", "b"),
        (False, "GPU-cccccccc-0000-0000-0000-000000000000", "c"),
        (False, "GPU-ccc,GPU-a", "ca"),  # CUDA takes the beginning of a UUID, where only one GPU's begins so
        (False, "GPU-", ""),
        (False, "GPU-x,0", ""),
        (True, "0,1,2,4,5,6,7", "abcefgh"),
        (True, "GPU-e,GPU-a", "ea"),
    ],
)
def test_cuda_visible_devices(host: Host, lost: bool, mask: str | None, letters: str) -> None:
    """Also where it leaves out the one that is lost."""
    host(*EIGHT[:3], gpu("d", 15) if lost else EIGHT[3], *EIGHT[4:], there=8, mask=mask)
    assert "".join(str(each["name"])[-1] for each in gpu_facts()) == letters


HARDWARE = "gpu_hardware"
LOST = "GPU 1 does not answer: Unknown Error (NVML error 999)"


@pytest.mark.parametrize(
    ("lines", "there", "mask", "said", "failure"),
    [
        (["init 18"], 1, None, "none: Driver/library version mismatch (NVML error 18)", "no_gpu"),
        (["count 999"], 8, None, "has 8 NVIDIA GPUs, and the driver shows none: Unknown Error", "no_gpu"),
        ([], 1, None, "has 1 NVIDIA GPU, and the driver shows none", "no_gpu"),
        (EIGHT[:7], 8, None, "has 8 NVIDIA GPUs, and the driver shows 7", "no_gpu"),
        ([*EIGHT[:3], gpu("d", 15), *EIGHT[4:]], 8, None, "GPU 3 does not answer: GPU is lost", HARDWARE),
        ([EIGHT[0], gpu("b", 999)], 2, None, LOST, HARDWARE),
        ([*EIGHT[:3], gpu("d", 999)], 4, "2,3", "GPU 1 of those in CUDA_VISIBLE_DEVICES", HARDWARE),
    ],
)  # fmt: skip
def test_trouble_is_no_machine_without_gpus(
    host: Host, lines: list[str], there: int, mask: str | None, said: str, failure: str
) -> None:
    host(*lines, there=there, mask=mask)
    with pytest.raises(Problem) as raised:
        gpu_facts()
    assert said in str(raised.value) and raised.value.failure == failure
    assert "launch.device=cpu" in (raised.value.hint or "")


def test_a_library_that_lacks_what_is_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host(*EIGHT, there=8)

    def facts(self: Nvml) -> None:
        raise AttributeError("undefined symbol: nvmlDeviceGetName")

    monkeypatch.setattr(Nvml, "facts", facts)
    with pytest.raises(Problem, match="cannot be asked: undefined symbol"):
        gpu_facts()


def test_no_library(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host(there=2)
    monkeypatch.setattr(nvml, "NVML", ("libmuster-none.so.1",))
    with pytest.raises(Problem, match=r"has 2 NVIDIA GPUs.* none: libmuster-none\.so\.1 is not found"):
        gpu_facts()
    host(there=2, mask="")  # for CPUs alone: nothing is asked
    assert gpu_facts() == []
    host(there=0)
    monkeypatch.setattr(nvml, "NVML", ("libmuster-none.so.1",))
    assert gpu_facts() == []


SLICES = ["mig 0 MIG-aaa1 9728", "mig 0 MIG-aaa2 19968"]


@pytest.mark.parametrize(
    ("lines", "mask", "memory"),
    [
        ([*EIGHT[:1], *SLICES], None, [9728]),
        ([*EIGHT[:1], *SLICES], "0", [9728]),  # not the 80 GB of the whole
        ([*EIGHT[:1], *SLICES], "MIG-aaa2", [19968]),
        ([*EIGHT[:1], *SLICES], "MIG-aaa2,MIG-aaa1", [19968]),  # CUDA uses one slice
        ([*EIGHT[:2], *SLICES], None, [9728]),  # and nothing beside it
        ([*EIGHT[:2], *SLICES], "1", [81559]),
    ],
)
def test_slices_of_a_gpu(host: Host, lines: list[str], mask: str | None, memory: list[int]) -> None:
    host(*lines, there=len(lines) - 2, mask=mask)
    assert [each["memory_total"] >> 20 for each in gpu_facts()] == memory


def test_a_gpu_that_is_lost_during_the_job(host: Host) -> None:
    """Its samples are empty, and the others' stay in their places."""
    host(*EIGHT[:2], there=2)
    nvml = Nvml()
    handles = nvml.handles()
    host(gpu("a", 15), EIGHT[1], there=2)
    Nvml()  # the library reads its file anew
    first, second = nvml.sample(handles, set())
    assert (first["percent"], first["memory_used"]) == (None, None)
    assert (second["percent"], second["memory_used"]) == (97, 0)


def test_gpus_of_the_kernel(tmp_path: Path) -> None:
    """Files that may be opened; entries of /proc where the files are not made yet, but could be."""
    dev, proc = tmp_path / "dev", tmp_path / "proc"
    dev.mkdir()
    assert gpu_files(True, str(dev), str(proc)) == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (proc / name).mkdir(parents=True)
    assert gpu_files(True, str(dev), str(proc)) == 2
    assert gpu_files(False, str(dev), str(proc)) == 0
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    assert gpu_files(False, str(dev), str(proc)) == 2
    (dev / "nvidia3").symlink_to(dev / "gone")  # a GPU that fell off its bus: opening it fails
    assert gpu_files(True, str(dev), str(proc)) == 3
