"""What launchers, schedulers, shells and the kernel print about the end of a process, and of whom."""

from __future__ import annotations

import re

RANK_MARK = re.compile(r"^\[rank\d+\]: ?")  # whose line it is
NCCL_WARNING = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d [\d:.]+\] )?([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] (?:\S+ )?NCCL WARN"
)
RAY_TASK = re.compile(r"(?:RayTaskError\(\w+\): |^)ray::.*\(pid=\d+, ip=([\w.:]+)")  # whose traceback follows
EXIT_CODE = re.compile(
    r"exits with return code = (?P<code>-?\d{1,9})|"
    r"srun: error: .*[Ee]xited with exit code (?P<slurm>\d{1,9})|"
    r"pdsh@\S+: \S+: ssh exited with exit code (?P<pdsh>\d{1,9})|"
    r"^\s*(?:Exit [Cc]ode:\s+|\S+ exited with code )(?P<container>\d{1,9})\s*$|"
    r"Rank (?P<rank>\d{1,6}) crashed with exit code (?P<composer>-?\d{1,9})|"
    r"Child process with PID \d+ terminated with code (?P<lightning>-?\d{1,9})|"
    r"^Exited with exit code (?P<lsf>\d{1,3})\.\s*$|"
    r"^Process (?:finished|exited) with (?:exit )?code (?P<ide>-?\d{1,10})|"  # PyCharm, VS Code
    r"returned a non-zero code: (?P<docker>\d{1,3})\s*$|"
    r"did not complete successfully: exit code: (?P<buildkit>\d{1,3})\b|"
    r"MPI_ABORT was invoked on rank (?P<abort>\d{1,6})\b|MPI_Abort\(.* - process (?P<aborted>\d{1,6})\s*$|"
    r"^= +(?:EXIT CODE: (?P<hydra>-?\d{1,9})|KILLED BY SIGNAL: (?P<intel>\d{1,2}))|"
    r"WITH THE EXIT STRING: .*\(signal (?P<mpich>\d{1,2})\)|"
    r"^\s*Exit Status:\s+(?P<pbs>-?\d{1,3})\b|"
    r"(?:\bERROR\b.*|[Rr]eplica \S+(?: \d+)?) exited with (?:a )?(?:non-?zero )?"
    r"(?:exit )?(?:code|status)(?: code)?(?: of)? (?P<any>-?\d{1,9})\b|"
    r"(?:failed \(exitcode|exitcode +): (?P<elastic>-?\d{1,9})\b|"
    r"(?:noticed that process rank (?P<noticed>\d{1,6}) with PID \d+ on node \S+ )?"
    r"exited on(?: signal (?P<mpi>\d{1,2})\b|\s*$)"
)
SIGNAL_GROUPS = ("mpi", "intel", "mpich")  # groups that are a signal's number
RANK_GROUPS = ("rank", "abort", "aborted", "noticed")  # groups that are a rank
_TASKS = re.compile(r"srun: error: \S+: tasks? [\d,-]+: ")
SRUN_KILLED = re.compile(r"srun: error: \S+: tasks? [\d,-]+: (?:Killed|Exited with exit code 137)")
# What a shell says of a program that a signal ended: alone, or after its own name and the process's number.
SHELL_SIGNAL = re.compile(
    r"(?:^(?:\S+: )?|: line \d+: +\d+ )"
    r"(?P<how>Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception)"
    r"(?: \(core dumped\))?(?:\s*$|\s\s)"
)
# A signal that a program brings upon itself: 4, 5, 7, 8 and 11.
CRASH_SIGNAL = re.compile(
    r"(?:exits with return code =|exitcode *:|terminated with code|crashed with exit code) -(?:4|5|7|8|11)\b|"
    r"exited on signal (?:4|5|7|8|11)\b|"
    r"(?:KILLED BY SIGNAL: |WITH THE EXIT STRING: .*\(signal )(?:4|5|7|8|11)\b|"
    r"Main process exited, code=(?:killed|dumped), status=(?:4/ILL|5/TRAP|7/BUS|8/FPE|11/SEGV)|"
    r"died with <Signals\.SIG(?:ILL|TRAP|BUS|FPE|SEGV)|"
    r"srun: error: \S+: tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction)"
)
# It says in so many words that a process of the job failed, and not why.
PROCESS_FAILED = re.compile(
    r"taking the entire process down|CANCELLED AT \S+ DUE TO TASK FAILURE|"
    r"Main process exited, code=(?:exited, status=[1-9]|(?:killed|dumped), status=(?!2/|15/))|"
    r"^docker: Error response from daemon: |"
    r"^Error executing job with overrides|Set the environment variable HYDRA_FULL_ERROR=1|"
    r"srun: error: \S+: tasks? [\d,-]+: Aborted|"
    r"srun: error: Task launch for \S+ failed|"
    r"Job \S+ is failed because \d+ \w+ replica\(s\) failed|"
    r"MPI_ERRORS_ARE_FATAL|^MPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\(|"
    r"\b(?:ERROR|CRITICAL|FATAL)\b.*\b(?:[Tt]raining|[Jj]ob) failed\b|"
    r"^-- Process \d+ terminated with the following error|"
    r"slurmstepd: error: \*\*\* .* FAILED \(non-zero exit code or other failure mode\)|"
    r"\bJobState=FAILED\b|^State: FAILED \(exit code |"
    r"^(?:\[[^\]]*\] )?Finished: FAILURE\s*$|^# Ended \(code [1-9]|^\s*final status: FAILED\s*$|"
    r" - RUN_FAILURE - |^##\[error\]Process completed with exit code [1-9]"
)
# The program's own word on a signal that asks it to end, after which it may end as it does otherwise.
ASKED_TO_END = re.compile(
    r"\b(?:[Rr]eceiv(?:ed|ing)|[Cc]aught) (?:signal:? )?SIG(?:TERM|INT)\b(?!:? handler)|\bSIGTERM received\b"
)
# Signals that a scheduler sends, or others do.
ENDED_FROM_OUTSIDE = re.compile(
    r"Main process received SIG(?:TERM|INT), exiting|got signal: (?:15|2)\b|killed by signal: Terminated|"
    r"exited on signal (?:15|2)\b|died with <Signals\.SIG(?:TERM|INT)|"
    r"CANCELLED AT \S+ \*\*\*|timeout: sending signal|Detected KeyboardInterrupt, attempting|"
    r"Main process exited, code=(?:killed|dumped), status=(?:15/TERM|2/INT)|"
    r"KILLED BY SIGNAL: (?:15|2)\b|WITH THE EXIT STRING: .*\(signal (?:15|2)\)|: line \d+: +\d+ Terminated\b|"
    rf"{ASKED_TO_END.pattern}|"
    r"JobState=CANCELLED\b|^State: CANCELLED\b|^Gracefully stopping\.\.\. \(press Ctrl\+C again|"
    r"\bexiting with (?:exit )?code (?:143|130)\b|"
    r"Received (?:Signals\.)?(?:SIGTERM|SIGINT|15|2) death signal|"
    r"`Termination signal` is detected by the operating system|"
    r"\*\*\* SIG(?:TERM|INT) \(@\S+\) received by PID|"
    r"^TERM_(?:(?:FORCE_)?(?:OWNER|ADMIN)|EXTERNAL_SIGNAL)\b|job\.exception type=cancel\b|"
    r"^(?:\[[^\]]*\] )?Finished: ABORTED\s*$|^\s*final status: KILLED\s*$|^Job '[^']*' was stopped\s*$|"
    r"^(?:Terminated|KeyboardInterrupt)(?:: |  |\s*$)|^[\w.-]+: Terminated\s*$"
)
# A shell's word on what it ran beside the training, or after it: that watches, waits or copies.
HELPER_PROGRAM = re.compile(
    r": line \d+: +\d+ (?:[A-Z]\w+ ){1,3} *(?:\( *)?(?:(?:sudo|nohup|exec) )*(?:\S*/)?"
    r"(?:(?:nvidia|rocm|amd|npu|xpu)-smi|dcgmi|nvtop|nvitop|gpustat|tensorboard|h?top|free|watch|while|"
    r"(?:vm|io|mp|d|pid)stat|sar|tail|tee|sleep|rsync|jupyter\S*)\b"
)
LSF_REPORT = re.compile(r"Subject: Job \d+(?:\[\d+\])?: <.*> in cluster <.*> (Done|Exited)\s*$")
LSF_TERM = "TERM_"  # what LSF reports of a job's end, before its output as well as after it
# What kubectl, Docker's swarm, Ray and syslog put before the lines of each pod, task, process and host.
_PREFIXED = (
    r"(?:\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ?|[\w.-]+\.\d+\.\w+@(?P<node>[\w.-]+) +\| ?|"
    r"\((?:TrainController (?P<controller>pid=\d+(?:, ip=[\w.:]+)?)|"  # which says what others did
    r"(?:[\w.]+(?:\([^()]*\))? (?:rank=\d+ )?(?P<pid>pid=\d+)|raylet)(?:, ip=(?P<ip>[\w.:]+))?)\) ?|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<machine>[\w.-]+) [\w./@-]+(?:\[\d+\])?: )"
)
SENDER = re.compile(_PREFIXED)
# Hosts that a line itself names: "srun: error: node07: task 3: ...", "srun: error: Node failure on node07",
# "pdsh@head: node07: ssh exited ...", "ssh: connect to host node07 port 22: ...", Open MPI's "on node n7".
NAMED_HOSTS = re.compile(
    r"srun: error: (?P<srun>[\w.,\[\]-]+): tasks? (?P<tasks>[\d,-]+): |"
    r"error: Node failure on (?P<node>[\w.,\[\]-]+)|"
    r"error: Task launch for \S+ failed on node (?P<launch>[\w.-]+)|"
    r"pdsh@\S+: (?P<pdsh>[\w.-]+): ssh exited|^(?P<shell>[\w.-]+): -?(?:ba|da|z|k)?sh: |"
    r"ssh: connect to host (?P<ssh>\S+) port|"
    r"on node (?P<mpi>\S+) exited on(?: signal|\s*$)|\b[Rr]ank \d+, node (?P<megatron>[\w.-]+), device \d|"
    r"(?:at node \(ID: \w+, IP|[Mm]emory on the node \(IP): (?P<ray>[\w.:]+)|"
    r"^(?P<pals>[\w.-]+): (?:shepherd|rank \d+) died from|\bError from \w+@(?P<condor>[\w.-]+): "
)
# Exit codes of a program that brought a signal upon itself, as the launcher, a shell and ssh count them.
OWN_SIGNAL_CODES = frozenset(
    code for signal in (4, 5, 6, 7, 8, 11) for code in (-signal, 128 + signal, 256 - signal)
)
# A launcher ends what is left by itself: Lightning, vLLM, Slurm, docker compose.
LAUNCHER_ENDS = re.compile(
    r"Forcefully terminating all other processes|Got fatal signal from worker processes, shutting down|"
    r"srun: (?:Force Terminated |Job step aborted|(?:\S+: )*Terminating (?:StepId|job step)|forcing job )|"
    r"slurmstepd: error: \*\*\* .* CANCELLED AT |"
    r"\bAborting on container exit|^Gracefully stopping\.\.\. \(press Ctrl\+C again"
)
# Open MPI's account of the one rank that it noticed, and Hydra's of all that a signal ended.
MPI_SIGNAL = re.compile(r"\bexited on signal \d|KILLED BY SIGNAL: |EXIT STRING: ")
MPI_KILLED = re.compile(r"\bexited on signal 9\b|(?P<all>KILLED BY SIGNAL: 9\b|EXIT STRING: Killed)")
CANCELLED_BY_SLURM = re.compile(r"CANCELLED AT \S+ \*\*\*|JobState=CANCELLED\b|^State: CANCELLED\b")
COMPOSE_EXIT = re.compile(r"^\s*\S+ exited with code \d")  # of a container of docker compose
LIGHTNING_TIMER = "Time limit reached. Elapsed time is "
# torchrun's and Hydra's account of a process: its host, then its exit code.
ACCOUNT_HOST = re.compile(r"(?:\s+host +: |= +(?:RANK \d+ )?PID \d+ RUNNING AT (?:\S+@)?)(\S+)")
ACCOUNT_TRACEBACK = "  traceback : Traceback"
ACCOUNT_EXIT_CODE = re.compile(r"\s+(?:exitcode +|Exit code): ")
POD_NODE = re.compile(r"Node: {2,}(?:([\w.-]+)/\S*)?")  # of the pod that kubectl describes
POD_STATUS = re.compile(r"Status: {2,}(\w+)\s*$")  # and how that one ended
POD_FIELD = re.compile(r"\s+(?:Reason|Exit Code|Message): ")
RAY_SNIPPET = re.compile(r"\[Rank (\d{1,9}) Error Snippet\]:")  # whose exception Ray Train shows
PRRTE_NOTICED = re.compile(r"noticed that process rank \d+ .* exited on\s*$")  # the next line says how
ILLEGAL_INSTRUCTION = re.compile(
    r"Illegal instruction|SIGILL|4/ILL|(?:code|code =|exitcode *:) -4\b|(?i:signal):? 4\b"
)
BUS_ERROR = re.compile(r"[Bb]us error|SIGBUS|7/BUS|(?:code|code =|exitcode *:) -7\b|(?i:signal):? 7\b")
# And the process's rank, as torchrun and mpirun say it.
ACCOUNT_RANK = re.compile(r"\s+(?:rank +: |Process name: \[\[\d+,\d+\],)(\d{1,9})")
# The kernel's word on a process by its number, and that of a launcher or a shell.
KERNEL_PROCESS = re.compile(r"(?:Killed process |(?:SIGBUS to|Killing) \S{1,16}:)(\d+)\b")
PROCESS_NUMBER = re.compile(r"\(pid: (\d+)\)|\bPID (\d+)\b|: line \d+: +(\d+) ")
# torchrun's account of processes that failed: its headings, and what it has no file for.
HEADINGS = re.compile(r"\s*(?:\S+ FAILED|Failures:|Root Cause \(first .*|error_file: .*)\s*$")
# What a line begins with, where it says whose it is: a host, then what torch, mpirun and srun put before it.
SENDERS = re.compile(
    rf"{_PREFIXED}?(?:\S+: )?(?:\[(?:rank|default)\d+\]:|\[\S*\d+,\d+\]<std|\s*\d{{1,6}}: )?"
)


def tells_an_end(line: str) -> bool:
    """Return whether a launcher or a shell tells of a process's end."""
    return any(
        each.search(line) for each in (EXIT_CODE, SHELL_SIGNAL, LAUNCHER_ENDS, ENDED_FROM_OUTSIDE, _TASKS)
    )
