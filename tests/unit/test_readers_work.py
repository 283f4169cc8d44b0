"""What was trained, as a log tells it; and jobs of which no log tells it, which are compared with no others.

The lines of 2023 are quoted from a log of DeepSpeed-Chat in a public blog (June 2023, DeepSpeed 0.9); those
of 2024 from LambdaLabsML/DeepSpeedExamples, applications/DeepSpeed-Chat/training/output; the Trainer's header
from public notes on fine-tuning ESM2 (April 2025).
"""

from __future__ import annotations

import pytest

from muster.readers._frame import Frame, described

# No line of 2023 says with which command a process was spawned: it stands in the runner's alone.
RUNNER = (
    "[2023-06-29 05:59:44,736] [INFO] [runner.py:555:main] cmd = /home/u/miniconda3/envs/eval/bin/python -u "
    "-m deepspeed.launcher.launch --world_info={world} --master_addr=127.0.0.1 --master_port=29500 "
    "--enable_each_rank_log=None main.py --model_name_or_path facebook/{model} "
    "--gradient_accumulation_steps 8 --lora_dim 128 --zero_stage 0 --deepspeed "
    "--output_dir /home/u/DeepSpeedExamples/applications/DeepSpeed-Chat/output/actor-models/1.3b"
)
WORLD = "eyJsb2NhbGhvc3QiOiBbMF19"  # {"localhost": [0]}
PDSH = (
    "[2024-07-08 07:03:48,220] [INFO] [runner.py:568:main] cmd = pdsh -S -f 1024 -w ml-512-node-001 export "
    "PYTHONPATH=/home/ubuntu/x/training; export NCCL_IB_HCA='=mlx5_1,mlx5_2'; export NCCL_DEBUG=WARN;  cd "
    "/home/ubuntu/x/training; /usr/bin/python3 -u -m deepspeed.launcher.launch --world_info={world} "
    "--node_rank=%n --master_addr=ml-512-node-001 --master_port=29500 {script} "
)
SCRIPT = "/home/ubuntu/x/training/step1_supervised_finetuning/main.py"
ARGUMENTS = "--data_path Dahoas/full-hh-rlhf --model_name_or_path facebook/opt-13b --lora_dim 128 --deepspeed"


def test_the_runner_and_the_launcher_say_the_same() -> None:
    """Whatever the numbers of their lines are, and with the quotes that pdsh needs."""
    spawned = ["/usr/bin/python3", "-u", SCRIPT, "--local_rank=0", *ARGUMENTS.split()]
    launch = f"[2024-07-08 07:03:52,356] [INFO] [launch.py:9:main] process 7 spawned with command: {spawned}"
    runner = PDSH.format(world="e30=", script=SCRIPT)
    quoted = " ".join(word if word.startswith("-") else f"'{word}'" for word in ARGUMENTS.split())
    found = []
    for lines in ([launch], [runner + ARGUMENTS], [runner + quoted], [runner + ARGUMENTS, launch]):
        frame = Frame()
        for line in lines:
            frame.line(line)
        found.append((frame.workload, frame.recipe))
    assert len(set(found)) == 1
    assert found[0][0] == "facebook/opt-13b (step1_supervised_finetuning)"


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        ("srun -n 16 python3 -u train.py --lr 1", "train"),
        ("mpirun -n 16 -hostfile /job/hostfile -x PATH=/usr/bin /usr/bin/python3 -u pretrain_gpt.py --lr 1",
         "pretrain_gpt"),
        ("/usr/bin/python3 -u -m deepspeed.launcher.launch --world_info=e30= --module pkg.train --lr 1",
         "pkg.train"),
    ],
)  # fmt: skip
def test_other_runners(command: str, stem: str) -> None:
    frame = Frame()
    frame.line(f"[2024-07-08 07:03:48,220] [INFO] [runner.py:9:main] cmd = {command}")
    assert (frame.workload, frame.recipe) == (stem, f"{stem} --lr 1")
    assert described(["python", "-u", "-m", "pkg.train", "--config", "x.py"])[0] == "pkg.train"
