"""`muster explain`: how a log ended. What is begun after a training's words of its end, and breaks off, is no
good end; what tools, schedulers and containers say of a good one is."""

from __future__ import annotations

import pytest

from muster.runs.explain import BEGUN, RETRIED, WHOLE
from tests.unit.logs import metaseq_log, trainer_log
from tests.unit.test_explain import OWN_LINE, TOP, TRACEBACK, said, steps_of


def titan(first: int, last: int) -> list[str]:
    return [
        f"[rank0]:[titan] 2025-11-20 09:{n // 60:02d}:{n % 60:02d},017 - root - INFO - step: {n:2}  "
        f"loss: 8.1  grad_norm: 1.2  memory: 74.12GiB(93.66%)  tps: 6,852  tflops: 391.20  mfu: 39.56%"
        for n in range(first, last)
    ]


def megatron(first: int, last: int, total: int = 5000) -> list[str]:
    return [
        f" [2025-11-20 09:12:{n % 60:02d}] iteration {n:8}/{total:8} | consumed samples: {512 * n:12} | "
        "elapsed time per iteration (ms): 7089.5 | learning rate: 1.5E-04 | global batch size:   512 |"
        for n in range(first, last)
    ]


def lightning(epochs: int) -> list[str]:
    bar = "Epoch {}: 100%|##########| 410/410 [03:11<00:00,  2.14it/s, v_num=3, train_loss=2.000]"
    return [bar.format(n) for n in range(epochs)]


BARS = [  # Transformers, which stopped early: its own bar is drawn once more at the end
    line
    for n in range(1, 30)
    for line in (
        f"{{'loss': {3 - n / 100}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': {n / 100}}}",
        f" {n}%|#         | {n}/100 [00:{n:02d}<01:10,  1.00s/it]",
    )
]
RUNTIME = "{'train_runtime': 29.2, 'train_samples_per_second': 21.4, 'train_loss': 1.31, 'epoch': 0.29}"
TITAN = [*titan(1, 50), "[rank0]:[titan] 2025-11-20 10:02:03,118 - root - INFO - Training completed"]
FIT = [*lightning(10), "`Trainer.fit` stopped: `max_epochs=10` reached."]
DONE = "[after training is done] datetime: 2025-11-20 11:33:19 "
MLPERF = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": null, "metadata": {{{} "lineno": 9}}}}'


@pytest.mark.parametrize(
    "lines",
    [
        [*TITAN, "=== resume with --training.steps 200 ===", *titan(50, 79)],
        [*megatron(1, 30), DONE, *megatron(30, 60)],
        [*megatron(1, 5001, 5000)[-30:], DONE, *megatron(100, 101)],
        [*metaseq_log(), *metaseq_log(ends=False)],
        [*BARS, RUNTIME, "Fold 1 finished", "=== fold 2/5 ===", *BARS],
        [*BARS[1::2], RUNTIME, *BARS[1:30:2]],
        [*FIT, *lightning(1)],
        [
            MLPERF.format(1000, "run_start", ""),
            MLPERF.format(9000, "run_stop", '"status": "success",'),
            MLPERF.format(9500, "run_start", ""),
        ],
    ],
)
def test_another_training_that_does_not_end(lines: list[str]) -> None:
    found = said(*lines)
    assert (found.answer, found.failure) == ("unknown", None) and "ended well" not in found.says


@pytest.mark.parametrize(
    ("lines", "rest"),
    [
        ([*BARS, RUNTIME], ["Training complete", "=== stage 2: dpo ===",
                            "Applying chat template:  41%|####      | 21000/51000 [00:11<00:15]"]),
        ([*BARS, RUNTIME], ["  5%|5         | 1/20 [00:00<00:03,  8.1it/s]"]),
        ([*BARS, RUNTIME], ["Saving final model..."]),
        ([*BARS, RUNTIME], ["=== stage 2: dpo ==="]),
        (TITAN, ["Merging LoRA weights..."]),
        (TITAN, ["uploading 12 files to gs://ckpt/run7", "uploaded 3/12 files"]),
        (TITAN, ["New Data Upload       :  31%|###1     | 4.98GB / 16.1GB,  112MB/s  "]),
        (TITAN, ["[NeMo I 2026-04-02 10:11:02 model:522] Scheduled async checkpoint save for /c/last"]),
        ([*BARS, RUNTIME], ["+ python convert_to_hf.py --in out/step-100"]),
        ([*BARS, RUNTIME], ["[rank3]:[E1120 10:51:03.118 ProcessGroupNCCL.cpp:688] [Rank 3] Watchdog caught "
                            "collective operation timeout: WorkNCCL(SeqNum=4121, OpType=ALLREDUCE) ran for"]),
        ([*BARS, RUNTIME], ["[rank3]:[E1120 10:51:03.118 ProcessGroupNCCL.cpp:688] [Rank 3] Watchdog caught "
                            "collective operation timeout: WorkNCCL(SeqNum=4121, OpType=ALLREDUCE) ran for",
                            RUNTIME]),  # another rank's word of the end
        (TITAN, ["+ python convert_to_hf.py", "Loading shards:  12%|#2        | 1/8 [00:11<01:20]"]),
        (TITAN, [f"eval batch {n}/40: accuracy 0.4" for n in range(1, 4)]),
        (TITAN, [f"eval batch {n}/40: accuracy 0.4" for n in range(1, 9)]),
        (FIT, ["Testing DataLoader 0:  31%|###       | 12/39 [00:01<00:03,  8.1it/s]"]),
        (FIT, ["Testing \u2501\u2501\u2501\u2578      12/39 0:00:01 \u2022 0:00:03 8.10it/s"]),
    ],
)  # fmt: skip
def test_what_is_begun_after_the_end_and_breaks_off(lines: list[str], rest: list[str]) -> None:
    assert said(*lines).answer == "nothing"
    found = said(*lines, *rest)
    assert (found.answer, found.exit_code, found.failure) == ("unknown", 1, None)
    begun = [line for line in rest if line != RUNTIME]
    assert BEGUN in found.says and found.lines[-1] == " ".join(begun[-1].split())


@pytest.mark.parametrize(
    ("lines", "rest"),
    [
        ([*BARS, RUNTIME], [BARS[-1]]),
        ([*BARS, RUNTIME], [" 50%|#####     | 10/20 [00:03<00:03,  2it/s]",
                            "100%|##########| 20/20 [00:06<00:00,  2it/s]"]),
        ([*BARS, RUNTIME], [" 95%|#########5| 19/20 [00:06<00:00,  2it/s]", "{'eval_loss': 2.0}"]),
        ([*BARS, RUNTIME], ["Saving model checkpoint to /out", "Model weights saved in /out/a.safetensors"]),
        ([*BARS, RUNTIME], ["model.safetensors: 100%|##########| 498M/498M [00:06<00:00, 9MB/s]"]),
        ([*BARS, RUNTIME], ["wandb: Waiting for uploads..."]),
        *((lines, [f"{what}..."]) for lines in ([*BARS, RUNTIME], TITAN, FIT)
          for what in ("Shutting down workers", "Cleaning up temporary files", "Exiting the program now",
                       "Stopping the profiler", "Destroying process group", "Flushing metrics to disk")),
        (TITAN, [f"eval batch {n}/8: accuracy 0.4" for n in range(1, 9)]),
        (TITAN, [*(f"eval batch {n}/40: accuracy 0.4" for n in range(1, 9)), "exited with exit code 0"]),
        (TITAN, ["=== run 3 finished ==="]),
        (TITAN, [*titan(48, 50), "+ exit 0"]),  # another rank's, which prints late
        (FIT, [lightning(10)[-1]]),
        (FIT, [lightning(11)[-1], FIT[-1], lightning(12)[-1]]),  # each end has its own
        ([*BARS, RUNTIME], [BARS[41], BARS[-1]]),  # of a rank that prints late
    ],
)  # fmt: skip
def test_what_comes_to_its_end_as_well(lines: list[str], rest: list[str]) -> None:
    assert said(*lines, *rest).answer == "nothing"


@pytest.mark.parametrize("how", ["after 230.1 minutes", "at iteration 30"])
def test_megatron_that_ends_itself_as_it_was_told(how: str) -> None:
    found = said(*megatron(1, 31), f"[exiting program {how}] datetime: 2025-11-20 11:33:19 ")
    assert found.answer == "nothing" and found.notes == ["-: it ended itself after 30 of 5,000 steps"]


@pytest.mark.parametrize(
    "lines",
    [
        [*megatron(1, 31), "[exiting program after receiving SIGTERM.] datetime: 2025-11-20 11:33:19 "],
        [*BARS, "SIGTERM received, will request JIT checkpoint after 3.0s", RUNTIME],
        [*steps_of(1, 9), "WARNING Received SIGTERM, saving checkpoint", "Training complete"],
        [*steps_of(1, 9), "Caught SIGTERM, saving", "train.py exited with exit code 0"],
        ["app-1  | step 3/10 loss 2", "Gracefully stopping... (press Ctrl+C again to force)",
         " Container app-1  Stopping", "app-1 exited with code 137"],
        [*steps_of(1, 9), "Time limit reached. Elapsed time is 3:45:00. Signaling Trainer to stop."],
        ["   JobState=CANCELLED Reason=None Dependency=(null)"],
        ["State: CANCELLED (exit code 0)"],
    ],
)  # fmt: skip
def test_a_program_that_was_asked_to_end_and_ends_as_usual(lines: list[str]) -> None:
    found = said("begin", *lines)
    assert found.answer == "named" and found.failure is not None and not found.notes
    assert said(*steps_of(1, 9), "Training complete", "Received SIGTERM").answer == "nothing"


COMPOSE = ["trainer-1  | step 149/150 loss=1.52", "trainer-1  | step 150/150 loss=1.51",
           "\x1b[Ktrainer-1 exited with code {}", "Aborting on container exit...",
           " Container llm-tensorboard-1  Stopping", "\x1b[Ktensorboard-1 exited with code 137",
           " Container llm-tensorboard-1  Stopped"]  # fmt: skip


def test_containers_that_docker_compose_ends_itself() -> None:
    """With --abort-on-container-exit, those that are left."""
    assert said(*COMPOSE).answer != "nothing"
    ended, failed = (said(*(line.format(code) for line in COMPOSE)) for code in (0, 1))
    assert (ended.answer, ended.failure) == ("nothing", None)
    assert failed.answer == "unknown" and failed.lines[0] == "trainer-1 exited with code 1"


@pytest.mark.parametrize("below", ["+ python train.py --lr 1e-4", "\n+ python train.py", "### array task 2"])
def test_an_earlier_run_whose_traceback_does_not_begin_at_its_top(below: str) -> None:
    """A shell goes on right below it: that run has ended."""
    raised = [TRACEBACK, OWN_LINE, "KeyError: 'loss_total'"]
    found = said(*BARS, *raised, below, *BARS, RUNTIME)
    assert found.failure is not None and found.failure.what == raised[-1]
    assert any("an earlier run in the same log" in note for note in found.notes)
    assert said(*BARS, *raised, "trying again", *BARS, RUNTIME).answer == "nothing"


AT_WORK = [f"Nov 20 09:15:{n:02d} trn-04 python3[8121]: step={n} loss=3.98" for n in range(20)]
KERNEL = "Nov 20 09:21:44 trn-04 kernel: Out of memory: Killed process {} total-vm:31211212kB, UID:1000"
UNIT = [
    "Nov 20 09:21:50 trn-04 python3[8121]: saved /out/final.pt",
    "Nov 20 09:21:52 trn-04 systemd[1]: llm-train.service: Deactivated successfully.",
]


def test_the_kernel_killed_another_program() -> None:
    for killed, answer in (("20111 (chrome)", "nothing"), ("8121 (python3)", "known")):
        assert said(*AT_WORK, KERNEL.format(killed), *UNIT).answer == answer
    work, unit = ([line.replace("python3", "train_model_gpt.py") for line in of] for of in (AT_WORK, UNIT))
    worker = KERNEL.format("8140 (train_model_gpt)")  # of a name the kernel has 15 characters
    assert said(*work, worker, *unit).answer == "known"
    raised = [f"Nov 20 09:21:45 trn-04 python3[8121]: {line}" for line in [*TOP[:3], "RuntimeError: worker"]]
    assert said(*AT_WORK, KERNEL.format("8140 (pt_data_worker)"), *raised).answer == "known"
    assert said(*AT_WORK, KERNEL.format("20111 (chrome)")).answer == "known"  # nothing goes on
    assert said(*AT_WORK, *UNIT).answer == "nothing"
    cron = "Nov 20 09:21:51 trn-04 CRON[7]: (root) CMD (x)"  # then the unit is another one
    assert said(*AT_WORK, UNIT[0], cron, UNIT[1]).answer == "unknown"


@pytest.mark.parametrize(
    ("last", "well"),
    [
        ("Saving... Done.", True),
        ("Loading checkpoint... Done.", False),
        ("Saving checkpoint... done.", False),
        ("step 3/9 loss 2\nSaving... Done.", False),
        ("[node-3] gpu health check exited with exit code 0", False),
        ("rank 0 loss 2\nrank 1 loss 2\nrank 1 (pid 4023) finished with exit code 0", False),
        ("rank 1 exited with exit code 0\nrank 0 exited with exit code 0", True),
        ("node 3: loss 2\nrank 0 exited with exit code 0", True),
        ("rank 1 loss 2\nrank 0: Training complete", True),
        ("Training complete\n+ python convert_to_hf.py --out hf", False),
        # what tools print, by their sources
        ("I1120 torch/distributed/elastic/agent/server/api.py:932] Local worker group finished "
         "(WorkerState.SUCCEEDED). Waiting 300 seconds for other agents to finish", True),
        ("I1120 api.py:932] Local worker group finished (WorkerState.FAILED). Waiting 300 seconds", False),
        ("I1120 api.py:932] Local worker group finished (SUCCEEDED). Waiting 300 seconds for other agents\n"
         "I1120 api.py:946] Done waiting for other agents. Elapsed: 0.0015 seconds", True),
        ("[2025-11-20, 09:27:11 UTC] {taskinstance.py:352} INFO - Marking task as SUCCESS. dag_id=a", True),
        ("[2025-11-20, 09:27:12 UTC] {local_task_job_runner.py:266} INFO - Task exited with return code 0",
         True),
        ("[2025-11-20, 09:27:12 UTC] {local_task_job_runner.py:266} INFO - Task exited with return code 1",
         False),
        ('time="2025-11-20T09:57:44.981Z" level=info msg="sub-process exited" argo=true error="<nil>"', True),
        ('time="2025-11-20T09:57:44.981Z" level=info msg="sub-process exited" argo=true error="exit status '
         '1"', False),
        ("  Normal   AllJobsCompleted  2m11s  jobset-controller  jobset completed successfully", True),
        ("  Normal   Completed         2m11s  job-controller  Job completed", True),
        ("      reason: Completed\n  phase: Succeeded", True),
        ("  phase: Running", False),
        ("   JobState=COMPLETED Reason=None Dependency=(null)\n   BatchFlag=1 Reboot=0 ExitCode=0:0", True),
        ("   JobState=RUNNING Reason=None Dependency=(null)\n   BatchFlag=1 Reboot=0 ExitCode=0:0", False),
        ("State: COMPLETED (exit code 0)\nCPU Efficiency: 41.00% of 02:51:03 core-walltime", True),
        ("State: RUNNING\nCPU Efficiency: 41.00% of 02:51:03 core-walltime", False),
        ('("Final validation metrics: {\'val-core/openai/gsm8k/reward/mean@1\': "\n'
         "(TaskRunner pid=11873) wandb: View run qwen2.5-3b at: https://wandb.ai/lab/runs/8g1d0m", True),
        ("2022-03-31 19:53:52 | INFO | yolox.core.trainer:195 - Training of experiment is done and the best "
         "AP is 41.20", True),
        ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 171.2 \n#", True),
        ("# Out of bounds values : 4 FAILED\n# Avg bus bandwidth    : 171.2 \n#", False),
        ("================= 120 passed, 2 skipped, 1 warning in 411.20s (0:06:51) =================", True),
        ("================= 1 failed, 119 passed in 411.20s (0:06:51) =================", False),
    ],
)  # fmt: skip
def test_words_of_an_end(last: str, well: bool) -> None:
    found = said("begin", "loss 2.3", *last.split("\n"))
    assert (found.answer, found.exit_code) == (("nothing", 0) if well else ("unknown", 1))


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)", "time_limit"),
        ("State: OUT_OF_MEMORY (exit code 0)", "slurm_oom"),
        ("   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)", "slurm_time_or_node"),
        ("FAILED tests/test_a.py::test_b - torch.OutOfMemoryError: CUDA out of memory. Tried", "cuda_oom"),
        ("FAILED tests/test_fsdp.py::test_fsdp_step - AssertionError: loss 3.1 != 2.9", None),
    ],
)
def test_accounts_of_jobs_and_tests_that_failed(line: str, failure: str | None) -> None:
    found = said("begin", line).failure
    assert found is not None and found.id == failure
    for words in ("   JobState=FAILED Reason=NonZeroExitCode", "State: FAILED (exit code 1)"):
        assert said("begin", words).answer == "unknown"


@pytest.mark.parametrize(
    "line",
    [
        'ERROR "cp out/a.safetensors s3://b/a.safetensors": AccessDenied: Access Denied status code: 403',
        "upload failed: out/a to s3://b/a An error occurred (AccessDenied) when calling the PutObject",
        "fatal error: Unable to locate credentials",
        "AccessDeniedException: 403 sa does not have storage.objects.create access to the bucket.",
        "CommandException: 1 file/object could not be transferred.",
        "ERROR: (gcloud.storage.cp) [sa] does not have permission to access b instance [ml-ckpt]",
        "2026/11/27 02:00:11 Failed to copy with 2 errors: last error was: googleapi: Error 403",
        'rsync: [receiver] write failed on "/ckpt/a": No space left on device (28)',
        "rsync error: some files/attrs were not transferred (code 23) at main.c(1338) [sender=3.2.7]",
        "cp: cannot create regular file '/nfs/a': Permission denied",
        "cp: error writing '/nfs/a': No space left on device",
        "mv: cannot move 'out' to '/nfs/out': Read-only file system",
        "scp: /ckpt/a: Permission denied",
        "ssh: connect to host nas port 22: Connection refused",
        "maria@nas: Permission denied (publickey,password).",
        "curl: (22) The requested URL returned error: 403",
        "Final Job Status: Failed",
        "error: failed to push some refs to 'https://huggingface.co/acme/llama'",
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        [*BARS, RUNTIME, "100%|##########| 100/100 [02:15<00:00,  2.71s/it]"],
        TITAN,
        ["begin", *steps_of(1, 9), "Training complete"],
        ["begin", *steps_of(1, 9), "train.py exited with exit code 0"],
    ],
)
def test_what_fails_after_the_end(end: list[str], line: str) -> None:
    """No good end: the training is whole, and what came after it is said."""
    for rest in ([line], ["+ ./publish.sh", line, line, "+ echo bye", "bye"]):
        found = said(*end, *rest)
        assert found.failure is not None and found.failure.evidence is not None
        assert (found.failure.evidence.text, found.notes) == (line, [WHOLE])
    for well in ([line, *end], [*end, line, *steps_of(20, 29), "Training complete"]):
        assert said(*well).answer == "nothing" or end[0] != "begin"
    warned = said(*end, f"warning: {line}")
    assert (warned.answer, warned.failure) == ("nothing", None)


ATTEMPT = ["[Pipeline] sh", "+ torchrun train.py", *steps_of(1, 30)]
RAISED = [*(f"[rank1]: {line}" for line in (TRACEBACK, TOP[1], "OSError: [Errno 5] Input/output error")),
          "script returned exit code 1", "ERROR: script returned exit code 1"]  # fmt: skip


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("Finished: SUCCESS", "Finished: FAILURE"),
        ("[2026-11-27T03:12:00.118Z] Finished: SUCCESS", "[2026-11-27T03:12:00.118Z] Finished: FAILURE"),
        ("# Ended (code 0) at Fri Nov 27 00:36:53 UTC 2026, elapsed time 9412 seconds",
         "# Ended (code 1) at Fri Nov 27 00:36:53 UTC 2026, elapsed time 9412 seconds"),
        ("\t final status: SUCCEEDED", "\t final status: FAILED"),
        ("2026-11-26 22:11:41 +0000 - dagster - DEBUG - nightly - 1f2a - 12 - RUN_SUCCESS - Finished",
         '2026-11-26 22:11:41 +0000 - dagster - ERROR - nightly - 1f2a - 12 - RUN_FAILURE - Execution'),
        ("11 of 11 steps (100%) done", ""),
        ("2026-11-26 22:17:44.926 Done!", ""),
        ("[2026-11-26T22:51:42.777Z]  || INFO: Trial 412 (Experiment 398) has completed", ""),
    ],
)  # fmt: skip
def test_what_runs_a_job_again_has_the_last_word(good: str, bad: str) -> None:
    """An attempt that failed ended nothing."""
    job = [*ATTEMPT, *RAISED, "Retrying", *ATTEMPT]
    found = said(*job, good)
    assert (found.answer, found.exit_code, found.failure) == ("nothing", 0, None)
    assert [each.text for each in found.others] == ["OSError: [Errno 5] Input/output error"]
    assert found.notes == [RETRIED]
    assert said(*job).answer == "unknown"
    onward = said(*job, good, "+ python train.py", *ATTEMPT)  # another program's word
    assert (onward.answer, onward.failure) == ("unknown", None)
    if bad:
        found = said(*job, "ERROR: script returned exit code 2", bad)
        assert (found.answer, found.failure) == ("unknown", None) and "no line says why" in found.says
        assert [each.text for each in found.others] == ["OSError: [Errno 5] Input/output error"]
    assert said(*ATTEMPT, *RAISED, bad).failure is not None


def test_attempts_that_tell_no_steps() -> None:
    for last in ("OurError", "RuntimeError: CUDA out of memory. 2 GiB"):
        attempt = [TRACEBACK, TOP[1], last, "ERROR: script returned exit code 1", "Retrying"]
        assert said("begin", *attempt, "loss 2", "Finished: SUCCESS").answer == "nothing"
        assert said("begin", *attempt, "loss 2").answer != "nothing"


def test_jobs_that_a_wrapper_ended_otherwise() -> None:
    for line in ("Finished: ABORTED", "\t final status: KILLED"):
        found = said("begin", *ATTEMPT, line)
        assert found.answer == "named" and "from outside" in found.says
    found = said("begin", *ATTEMPT, "##[error]Process completed with exit code 1.")
    assert found.answer == "unknown" and "no line says why" in found.says


LAUNCHED = "[2025-11-20] [INFO] [multinode_runner.py:98:get_cmd] Running on the following workers: {}"
LEFT = "{}: [2025-11-20 09:55:10,118] [INFO] [launch.py:367:main] Process {} exits successfully."


def test_deepspeeds_processes_on_several_hosts() -> None:
    """Where no line says how many there are, as many leave on each host."""
    begin = [LAUNCHED.format("worker-0,worker-1"), *steps_of(1, 9)]
    left = [LEFT.format(f"worker-{host}", 3100 + n) for host in (0, 1) for n in range(4)]
    assert said(*begin, *left).answer == "nothing"
    third = LAUNCHED.format("worker-0,worker-1,worker-2")
    assert said(third, *steps_of(1, 9), *left).answer == "unknown"
    assert said(*begin, *left[:-1]).answer == said(*begin, *left[:4]).answer == "unknown"
    world = "[2025-11-20 09:12:03] [INFO] [launch.py:181:main] WORLD INFO DICT: {'localhost': [0, 1, 2, 3]}"
    here = [line.partition(": ")[2] for line in left[:4]]
    assert said(world, *steps_of(1, 9), *here).answer == "nothing"
    for lines in (here[:3], [*here, world, *steps_of(1, 9)]):
        assert said(world, *steps_of(1, 9), *lines).answer == "unknown"


def test_a_pod_that_runs_again() -> None:
    pod = "Node: n3/10.0.0.3\nStatus:   {}\n    Last State:  Terminated\n      Reason:  OOMKilled\n"
    found = said(*pod.format("Running").split("\n"))
    assert found.failure is not None and found.failure.id == "container_oom"
    assert found.notes == ["-: the pod runs by now (Status: Running)"]
    assert not said(*pod.format("Failed").split("\n")).notes


def test_a_run_after_another_that_ended_well() -> None:
    """Its exception is the answer, and what is printed late of the first one does not matter."""
    trained = trainer_log().rstrip("\n").split("\n")
    found = said(*trained, "+ python train.py --lr 2", *BARS, *TOP)
    assert found.failure is not None and found.failure.id == "cuda_oom"


LIMIT = "slurmstepd: error: *** JOB 77121 ON n017 CANCELLED AT 2026-11-22T09:00:11 DUE TO TIME LIMIT ***"
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n017 CANCELLED AT 2026-11-22T09:00:11 ***"
ABORTED = ["srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
           "srun: error: n017: task 0: Terminated"]  # fmt: skip
LAST_SAVE = "saving checkpoint at iteration 5000 to /ckpt in torch_dist format"
MEGATRON = [*megatron(4900, 5001), DONE]


@pytest.mark.parametrize(
    "lines",
    [[*BARS, RUNTIME], [*BARS, RUNTIME, "Training finished."], TITAN, FIT, MEGATRON,
     [*steps_of(1, 9), "Training complete"]],
)  # fmt: skip
@pytest.mark.parametrize(
    ("word", "failure"),
    [(LIMIT, "time_limit"), ("   JobState=TIMEOUT Reason=TimeLimit", "time_limit"), (CANCELLED, None),
     ("   JobState=CANCELLED Reason=None Dependency=(null)", None)],
)  # fmt: skip
def test_a_scheduler_that_ends_a_job_after_its_training(
    lines: list[str], word: str, failure: str | None
) -> None:
    """The training is whole; the job is not one that ended well."""
    assert said("begin", *lines).answer == "nothing"
    for rest in ([word], [word, *ABORTED]):
        found = said("begin", *lines, *rest)
        assert found.failure is not None and (found.failure.id, found.failure.what) == (failure, word.strip())
        assert found.answer == ("known" if failure else "named") and found.notes == [WHOLE]


def test_a_last_save_that_a_time_limit_cuts() -> None:
    """What was begun after the training's end did not end, whoever ended it."""
    saved = "  successfully saved checkpoint from iteration    5000 to /ckpt"
    cut = said(*MEGATRON, LAST_SAVE, LIMIT, *ABORTED)
    assert cut.failure is not None and cut.failure.id == "time_limit"
    assert cut.notes == [f"{BEGUN}: {LAST_SAVE}"]
    assert said(*MEGATRON, LAST_SAVE, saved, LIMIT, *ABORTED).notes == [WHOLE]
    alone = said(*MEGATRON, LAST_SAVE)
    assert (alone.answer, alone.exit_code) == ("unknown", 1) and f"{BEGUN}: {LAST_SAVE}" in alone.says
    assert said(*MEGATRON, LAST_SAVE, saved).answer == "nothing"
    # A program that never says that it has saved does not say so at its end either.
    lines = [line for n in range(20) for line in (BARS[2 * n], BARS[2 * n + 1], f"Saving model to out/{n}")]
    assert said(*lines, RUNTIME, "Saving model to out/20").answer == "nothing"
    lines = [line for n in range(20) for line in (*lines[3 * n : 3 * n + 3], f"Model saved in out/{n}")]
    assert said(*lines, RUNTIME, "Saving model to out/20").answer == "unknown"


def test_a_last_step_is_no_word_of_an_end() -> None:
    """The format has words of an end; a log that stops at its last step may be of a program that hangs."""
    steps = megatron(4900, 5001)
    evaluated = " validation loss at iteration 5000 | lm loss value: 2.567550E+00 |"
    for rest in ([], [evaluated], [evaluated, "zero checkpoint saved ../mp_rank_00_optim_states.pt"]):
        found = said(*steps, *rest)
        assert (found.answer, found.exit_code, found.failure) == ("unknown", 1, None)
        assert found.says.endswith("nothing says how it ended after its last step")
        for end in (DONE, "Done.", "train.py exited with exit code 0"):
            assert said(*steps, *rest, end).answer == "nothing"


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ("INFO\t2026-11-20 09:14:31 +0000\tservice\t\tJob completed successfully.", "nothing"),
        ("   Exit Status:        0\n NGPUs Requested:    8                 GPU Utilisation: 91.2%\n"
         " Walltime requested: 24:00:00            Walltime Used: 02:52:11", "nothing"),
        ("   Exit Status:        271\n NGPUs Requested:    8               GPU Utilisation: 91%", "unknown"),
        ("[1,0]<stderr>:INFO:tensorflow:Loss for final step: 0.0121.", "nothing"),
        ("2026-11-20 10:03:22 INFO train Done.", "nothing"),
        ("Job 'raysubmit_stop1' was stopped", "named"),
        ("I1120 10:11:12.001 2201 preemption_sync_manager.cc:95] PreemptionSyncManager received preemption "
         "notice: SIGTERM. ", "known"),
    ],
)  # fmt: skip
def test_words_of_services_on_an_end(last: str, answer: str) -> None:
    assert said("begin", "loss 2.3", *last.split("\n")).answer == answer


def test_an_attempt_after_which_torchrun_starts_all_anew() -> None:
    """It says that a process failed; only where it gives up, it raises an exception itself."""
    failed = "E1128 00:11:31.321000 304 torch/x/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 3047)"
    first = [*steps_of(1, 12), *RAISED[:3], f"{failed} of binary: /v/bin/python"]
    found = said("begin", *first, *steps_of(1, 30), "Training complete")
    assert (found.answer, found.failure, found.notes) == ("nothing", None, [RETRIED])
    assert said("begin", *first, *steps_of(1, 30)).answer == "unknown"
    gave_up = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    account = [TRACEBACK, '  File "/v/bin/torchrun", line 10, in <module>', gave_up,
               "  exitcode  : 1 (pid: 3047)"]  # fmt: skip
    found = said("begin", *first, *account, *steps_of(1, 30), "Training complete")
    assert found.answer == "known" and any("an earlier run in the same log" in note for note in found.notes)
