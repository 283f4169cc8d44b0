"""Which hosts a job ran on: what the log says, or a guess from names, or nothing that could be judged."""

from __future__ import annotations

import pytest

from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers._paths import hosts_of_path
from tests.unit.logs import metaseq_log, one


@pytest.mark.parametrize(
    ("path", "hosts"),
    [
        ("logs/node23.log", ("node23",)),
        ("gpu-a-12.out", ("gpu-a-12",)),
        ("gpu05.log", ("gpu05",)),
        ("gpu[01,05].slurm-10008.out.csv", ("gpu01", "gpu05")),
        ("ml-512-node-023.log", ("ml-512-node-023",)),
        ("a3mega-a3meganodeset-0.out", ("a3mega-a3meganodeset-0",)),
        ("slurm-1234-node07.out", ("node07",)),
        ("node07.slurm-1234.err", ("node07",)),
        ("node07_rank3_20240708.log", ("node07",)),
        ("opt-13b_node07.log", ("node07",)),
        ("train-della-r3c2n9.log", ("della-r3c2n9",)),
        ("c0662/logs/seed1/train.log", ("c0662",)),
        ("node01_node02.log", ("node01", "node02")),
        ("node[01-02].rank0.log", ("node01", "node02")),
        ("node07.cluster.local.log", ("node07",)),
        ("10.0.3.4.log", ("10.0.3.4",)),
        ("ip-10-0-3-4/stdout.log", ("ip-10-0-3-4",)),
        *((f"h100-07/{each}.log", ("h100-07",)) for each in ("w1", "r12", "p3", "j04", "t1", "i2")),
        ("r2n[07-08]/w2/train.log", ("r2n07", "r2n08")),
        ("w12.log", ("w12",)),
        *(
            (f"{host}.log", (host,))
            for host in (
                "SH-IDC1-10-5-34-12",
                "t001-002",
                "s01",
                "a12",
                "h07",
                "r05n12",
                "holygpu8a19604",
                "kn045",
                "g0001",
                "gke-train-pool-1-abc123-x7k9",
                "hgx-isr1-001",
                "h100-07",
                "nid001234",
                "lambda-hyperplane01",
            )
        ),
    ],
)
def test_names_that_are_hosts(path: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of_path(path)[0] == hosts


@pytest.mark.parametrize(
    "path",
    ["slurm-104.out", "slurm-104_3.out", "slurm_104.log", "104.out", "job104.log", "job-104/train.log",
     "train.o12345", "train.e12345", "run_3.log", "run7/out.txt", "exp12.log", "step100.log", "epoch-3.log",
     "rank0.log", "local_rank_3.log", "attempt_0/0/stdout.log", "trial_2.csv", "seed1.log", "2024-07-08.log",
     "log_20240708_0550.txt", "output_3.log", "opt-350m_1_1xN_batch0001.log", "gpt2.log", "llama3-8b.log",
     "resnet50/bs24.log", "lr3e-4.log", "4nodes.log", "nodes16.log", "8gpus/train.log", "adamw.log",
     "version_0/metrics.csv", "h100/bf16/tp8.log", "fleet3.tar.gz/train.log", "v2.log", "h200/x.log",
     "a100/b200/l40s.log", "mi300x.log", "t5.log", "s1.log", "e5/train.log", "k8s.log",
     "worker_logs/0.log", "part-00001.csv", "a3f2a1b9-1234-4abc-8def-1234567890ab.log",
     "trainer-7d9f8b6c5-x2x4p.log", "train-v45-20251231-160511.log", "deadbeef1.log", "issue692.log"],
)  # fmt: skip
def test_names_that_are_none(path: str) -> None:
    assert hosts_of_path(path)[0] == ()


# Every case has a log with step times, and something that says that more hosts than are named took part.
UNKNOWN = {
    "64 ranks, and a file named after one host": (["world_size = 64"], "node{}.log"),
    "the number of its hosts": (["nnodes=16, num_local_procs=4, node_rank=0"], "node{}.log"),
    "a job number, and no host": (["SLURM_JOB_ID=10{}"], "slurm-10{}.out"),
    "a Slurm job, and the host that wrote": (["SLURM_JOB_ID=1", "SLURMD_NODENAME=node07"], "{}.log"),
    "a rank that NCCL names of many": (
        ["node01:123:456 [0] NCCL INFO comm 0x55 rank 0 nranks 64 cudaDev 0 busId 1000 - Init COMPLETE"],
        "{}.log",
    ),
}


def test_ranks_that_go_on_make_the_hosts_known() -> None:
    """Files of two hosts, each of which knows of 16 ranks."""
    logs = [one(["world_size = 16", *metaseq_log()], f"run/node0{r // 8}.rank{r}.log") for r in range(16)]
    found = judged("x", logs, Settings(), {})
    assert [each.judged for each in found.jobs].count(True) == 1
    assert {tuple(each.hosts) for each in found.jobs} == {("node00", "node01")}


# ---- several jobs in one file ------------------------------------------------------------------------------
