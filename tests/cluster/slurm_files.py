"""The files that Slurm's daemons and commands read. All of them, and all that Slurm writes, lie in one
folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.warm import REAL

from .boot import Node
from .namespaces import ClusterError, tool
from .sshd import write_private

HEAD = "head"  # the name of slurmctld's host
GPUS = 2  # per host
SOCKET_PATH = 107  # bytes that an address of a Unix socket holds


@dataclass(frozen=True)
class Files:
    """Where everything is. The folder is seen by the machine and by every host."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts"

    @property
    def key(self) -> Path:
        return self.folder / "munge.key"

    @property
    def socket(self) -> Path:
        return self.folder / "munge.socket"

    def spool(self, node: str) -> Path:
        return self.folder / "spool" / node

    @property
    def stepd(self) -> Path:
        return self.folder / "stepd"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log_tail(self, name: str) -> str:
        log = self.log(name)
        return log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""


def write_files(files: Files, number: int, address: str, nodes: Sequence[Node]) -> None:
    """Everything that Slurm on these hosts needs. Raises ClusterError where the folder's path is too long."""
    longest = max((node.name for node in nodes), key=len, default="")
    step = files.spool(longest) / f"{longest}_9999.4294967295"  # slurmstepd's: job and step
    for socket in (files.socket, step):
        if len(os.fsencode(socket)) > SOCKET_PATH:
            raise ClusterError(f"{socket} is too long for the address of a socket")
    for each in ("state", "spool"):
        (files.folder / each).mkdir(parents=True)
    for index in range(GPUS):  # slurmd counts the files; that they are no devices, it only mentions
        (files.folder / f"gpu{index}").touch()
    files.key.write_bytes(os.urandom(128))
    files.key.chmod(0o400)
    files.hosts.write_text(f"127.0.0.1 localhost\n{address} {HEAD}\n", encoding="ascii")
    gpus = files.folder / f"gpu[0-{GPUS - 1}]"
    write_private(files.folder / "gres.conf", f"AutoDetect=off\nName=gpu Type=fake File={gpus}\n")
    write_private(files.stepd, stepd_text())
    files.stepd.chmod(0o700)
    write_private(files.conf, conf_text(files, number, address, nodes))


def stepd_text() -> str:
    """slurmstepd with what a step leaves behind as its children.

    proctrack/linuxproc ends the descendants of slurmstepd. A process whose parent has ended would no longer
    be one; a subreaper (36 is PR_SET_CHILD_SUBREAPER) inherits it.
    """
    return f"""\
#!{REAL} -IS
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)
os.execv({tool("slurmstepd")!r}, ["slurmstepd", *sys.argv[1:]])
"""


def conf_text(files: Files, number: int, address: str, nodes: Sequence[Node]) -> str:
    folder = files.folder
    lines = [
        f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} CPUs=8 RealMemory=4000"
        f" Gres=gpu:fake:{GPUS} Feature={'odd' if index % 2 else 'even'}"
        for index, node in enumerate(nodes, start=1)
    ]
    short = ",".join(node.name for node in nodes[:2])
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    lines.append(f"PartitionName=short Nodes={short} MaxTime=00:02:00 State=UP")
    return f"""\
ClusterName=muster{number}
SlurmctldHost={HEAD}({address})
SlurmctldPort={26000 + number}
SlurmdPort=6818
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={files.socket}
StateSaveLocation={folder}/state
SlurmdSpoolDir={files.spool("%n")}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
JobRequeue=1
EnforcePartLimits=ALL
KillWait=4
MinJobAge=300
SlurmdTimeout=10
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
{chr(10).join(lines)}
"""


def munged_argv(files: Files) -> list[str]:
    """One munged for all hosts, which reach its socket by its path.

    As root and forced, for the folder may lie below one that is closed to munge's own user.
    """
    return [
        tool("munged"),
        "--foreground",
        "--force",
        f"--key-file={files.key}",
        f"--socket={files.socket}",
        f"--pid-file={files.folder / 'munged.pid'}",
        f"--seed-file={files.folder / 'munged.seed'}",
        f"--log-file={files.log('munged')}",
    ]
