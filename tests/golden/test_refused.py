"""What the command line says of input that it refuses: error, place and hint; and that nothing was left."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from pathlib import Path

import pytest

from tests.golden.documents import Documents, muster, workplace

SAMPLE = '{"question": "how many", "sql": "SELECT 1"}\n'
# In the folder in which the commands are typed.
FILES = {
    "empty-hosts": "# nobody\n\n",
    "twice": "node1 slots=2\nnode1 slots=2\n",
    "malformed": "node1 slots=2\nnode2 slots=two\n",
    "bad.yaml": "workload: [text2sql\n",
    "loop.yaml": "inherit: loop\n",
    "casual.yaml": "workload: casual-lm\ndata: {sequence: 64}\n",
    "spelling.yaml": "workload: spelling\n",
    "fours.yaml": "groups: [4]\njobs: [{recipe: digits}]\n",
    "ds.json": '{"micro_batch_per_gpu": 4}',
    "data/train.jsonl": SAMPLE * 3 + "not json\n",
    "one.csv": "question,sql\nq,one\n",
    "two.csv": "question,sql\nq,one\nr,two\n",
    "taken/precious": "do not touch",
    "notes.txt": "nothing",
}
COMMANDS = """
trian
zzz
show
show nothing
show last --runs ''
ls --where "stauts = 'failed'"
ls --where '1; DROP TABLE runs'
ls --where ''
train demo
train ''
train digits --hosts ''
train demo --hosts ./hosts
train demo --hosts empty-hosts
train demo --hosts twice
train demo --hosts malformed
train dmeo --hosts local:1
train bad.yaml --hosts local:1
train loop.yaml --hosts local:1
train casual.yaml --hosts node1
train spelling.yaml --hosts local:1
train digits local:2 local:3
train digits local:2 engine.zero
train digits local --name last
train digits local --name a/b
train digits local --name a --output b
train demo --hosts local:1 --output taken
train demo --hosts local:1 --output /proc/nowhere/run
train demo --hosts local:1 engine.zer=1
train demo --hosts local:1 batch.micro=many
train demo --hosts local:2 batch.global=33
train demo --hosts local:1 precision=fp16
train demo --hosts local:1 engine.config=ds.json
train demo --hosts local:1 engine.name=ddp
train demo --hosts local:1 data.path=nowhere
train demo --hosts local:1 data.path=data
train demo --hosts local:1 data.path=one.csv
train causal-lm --hosts local:1 data.path=one.csv
train digits local:2 train.max_steps= --dry-run
train digits local:2 'train.learning_rate= ' --dry-run
train digits local:2 train.learning_rate=null --dry-run
train digits local:2 lr=0.1 --dry-run
train digits local:2 train.lr=0.1 --dry-run
train digits local:2 epochs=2 --dry-run
train digits local:2 num_train_epochs=2 --dry-run
train digits local:2 batch_size=8 --dry-run
train digits local:2 per_device_train_batch_size=8 --dry-run
train digits local:2 model=gpt2 --dry-run
train digits local:2 engine=ddp --dry-run
train digits local:2 data=x.jsonl --dry-run
train digits local:2 fp16=true --dry-run
train digits local:2 max_grad_norm=1 --dry-run
train digits local:2 save_steps=5 --dry-run
train digits local:2 grad-accum=2 --dry-run
train digits local:2 max_seq_length=5 --dry-run
train causal-lm local:2 max_seq_length=5 --dry-run
prepare local:2
plan digits
plan
plan digits --on h300:8x4
plan digits --on h200:8x4,fast
plan digits --on h200:0x4
plan nosuch --on h200:8
plan opt-benchmark model.name=opt-14b --on h200:8
plan gpt2-small model.name=gpt2-smal --on h200:8
plan digits --on h200:8 --host-memory lots
plan digits --on h200:8x2 --link 10Gbit
plan digits --hosts local:2 --host-memory 64GB
plan digits --on h200:100000x100000
plan --calibrate nosuch
plan digits --on h200:8 --price inf
plan digits --on h200:8 --price nan
bench
bench acceptance
bench nothing --hosts a
bench acceptance --hosts a,a
bench acceptance --hosts a nobody:train.max_steps=1
bench acceptance --hosts a opt-350m:train.max_step=1
bench acceptance --hosts a fabric.seconds=5 train.max_step=1
bench acceptance --hosts a nonsense
bench zero-sweep --hosts a --recipe digits
bench scaling --hosts a --recipe digitz
bench scaling --hosts local:2x1 launch.port=4000
bench acceptance --hosts slurm:
bench acceptance --hosts a --baseline /nowhere.json
bench --continue /nowhere/at/all
bench acceptance --continue x
bench --continue x --hosts a
bench fours.yaml --hosts local:2x1 --dry-run
judge missing
judge .
judge . --slow 0
judge . --line '(?=a)(?P<step>b)'
judge . --line 'it (?P<stepp>b)'
judge . --column step
judge . --column step=it
judge . --host-pattern '('
judge . --host-pattern node
explain nowhere/x
""".strip().splitlines()


@lru_cache
def folder() -> Path:
    """The folder in which the commands are typed."""
    place = workplace() / "refused"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place


def refused(command: str) -> str:
    """What is printed. Raises AssertionError where something is left in the folder."""
    place = folder()
    told = str(muster(*shlex.split(command), place=place))
    left = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()} - {*FILES}
    assert not left, f"{command}: leaves {left}"
    return re.sub(r"\d+ shipped", "{some} shipped", told)


DOCUMENTS = [Documents("refused", tuple(COMMANDS), refused)]


@pytest.mark.parametrize("command", COMMANDS)
def test_input_that_is_refused(command: str) -> None:
    DOCUMENTS[0].check(command)
