"""Why a job failed, from its log: the first line that decides. Pure.

The table of failures has what tools print about failures; here is what they print about a process's end.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal, Protocol, get_args

from muster.core.inventory import split_hosts
from muster.failures.collectives import HINTS as COLLECTIVES
from muster.failures.collectives import Collectives
from muster.failures.events import HINTS as EVENTS
from muster.failures.events import OVER, PodEvent, event_of
from muster.failures.table import Blame, KnownFailure, Recognised, Weight, find, known_failures, phrases

LONGEST = 300  # characters of a reason

_ONWARD = ("going on", "ontinuing", "etrying", "kipping")  # a program may go on after what it met
_REASONS = tuple(
    sorted(
        {phrase.hint for _, phrase in phrases("log") if phrase.weight != "notice"}
        | {"rror", "Exception", "Traceback", "exit code", "exitcode", "exits with", "signal", "SIGTERM"}
        | {"SIGINT", "CANCELLED", "Terminated", "Interrupt", "Segmentation", "Bus error", "exited with"}
        | {"  host      : ", "  rank      : ", "Root Cause (first observed", "what():"}
        | {"above exception", "<Signals.", "Hangup", "] Check failed: ", "ray::", "Subject: Job ", "TERM_"}
        | {"Lost executor", "memory budget", "CUDA initialization: ", *EVENTS}
        | {
            "HYDRA_FULL_ERROR",
            "Got fatal signal",
            "Error response from daemon",
            "Main process exited",
            "Exit Code",
            "Exit code",
            "non-zero code: ",
            "Falling back to cpu",
            "exited on",
            "Exit Status: ",
            "' was stopped",
            "terminated with the following error",
            "Process name: [[",
            "MPI_ERRORS_ARE_FATAL",
            "Node:  ",
            "Status:  ",
            "is failed because",
            "exited with code",
            "Exception ignored",
            "terminated with code",
            "srun: Force Terminated",
            "raining failed",
            "MPI_ABORT was",
            "MPI_Abort(",
            "RUNNING AT",
            "EXIT CODE",
            "KILLED BY SIGNAL",
            "EXIT STRING",
            "ob failed",
            "crashed with exit",
            "Job step aborted",
            "JobState=",
            "Time limit reached. Elapsed",
            "Aborting on container exit",
            "Gracefully stopping... (press",
            "State: CANCELLED",
            "Terminating StepId",
            "Terminating job step",
            "forcing job termination",
            *("Finished: FAILURE", "Finished: ABORTED", "# Ended (code", "final status: ", " - RUN_FAILURE"),
        }
        | {"Aborted", "Illegal instruction", "Floating point exception"},
        key=lambda hint: (len(hint), hint),  # short ones are met most
    )
)
HINTS = (*_REASONS, *_ONWARD, *COLLECTIVES)
_PLAIN = ("rror", "Exception")  # hints that many lines have which tell of no failure
_TELLING = (*(hint for hint in _REASONS if hint not in _PLAIN), *COLLECTIVES)
_NUMBERED = re.compile(
    r"errno|os error|\bcode\b|client error|\bper gpu\b", re.IGNORECASE
)  # what counts is a number
_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|ZipFile)\b(?=: |\s*$)"
)
_HANDLED = "During handling of the above exception, another exception occurred"
_CAUSED = "The above exception was the direct cause of the following exception"
CHAINED = re.compile(f"{_HANDLED}|{_CAUSED}")
BAD_ROW = "dataset_row"
_SOURCE = re.compile(r"\s+raise \w")  # a line of a program, in a traceback
_CAUGHT = re.compile(r": Caught \w+ in DataLoader worker process \d")
# What ended a process in C++: an exception, and what glog found not to hold.
_WHAT = re.compile(r"\s*what\(\): +\S|\[?F\d{3,4} \d\d:\d\d:\d\d\.\d+ .*\] Check failed: ")
_MARK = re.compile(r"^\[rank\d+\]: ?")  # whose line it is
_NCCL = re.compile(r"(?:\[\d{4}-\d\d-\d\d [\d:.]+\] )?([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] (?:\S+ )?NCCL WARN")
_TASK = re.compile(r"(?:RayTaskError\(\w+\): |^)ray::.*\(pid=\d+, ip=([\w.:]+)")  # whose traceback follows
_EXITS = re.compile(
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
_SIGNALS = ("mpi", "intel", "mpich")  # groups that are a signal's number
_RANKS = ("rank", "abort", "aborted", "noticed")  # groups that are a rank
_TASKS = re.compile(r"srun: error: \S+: tasks? [\d,-]+: ")
_SRUN_KILLED = re.compile(r"srun: error: \S+: tasks? [\d,-]+: (?:Killed|Exited with exit code 137)")
# What a shell says of a program that a signal ended: alone, or after its own name and the process's number.
_SHELL = re.compile(
    r"(?:^(?:\S+: )?|: line \d+: +\d+ )"
    r"(?P<how>Killed|Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception)"
    r"(?: \(core dumped\))?(?:\s*$|\s\s)"
)
# A signal that a program brings upon itself: 4, 5, 7, 8 and 11.
_CRASH = re.compile(
    r"(?:exits with return code =|exitcode *:|terminated with code|crashed with exit code) -(?:4|5|7|8|11)\b|"
    r"exited on signal (?:4|5|7|8|11)\b|"
    r"(?:KILLED BY SIGNAL: |WITH THE EXIT STRING: .*\(signal )(?:4|5|7|8|11)\b|"
    r"Main process exited, code=(?:killed|dumped), status=(?:4/ILL|5/TRAP|7/BUS|8/FPE|11/SEGV)|"
    r"died with <Signals\.SIG(?:ILL|TRAP|BUS|FPE|SEGV)|"
    r"srun: error: \S+: tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction)"
)
# It says in so many words that a process of the job failed, and not why.
_FAILED = re.compile(
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
_ASKED = re.compile(
    r"\b(?:[Rr]eceiv(?:ed|ing)|[Cc]aught) (?:signal:? )?SIG(?:TERM|INT)\b(?!:? handler)|\bSIGTERM received\b"
)
# Signals that a scheduler sends, or others do.
_EXTERNAL = re.compile(
    r"Main process received SIG(?:TERM|INT), exiting|got signal: (?:15|2)\b|killed by signal: Terminated|"
    r"exited on signal (?:15|2)\b|died with <Signals\.SIG(?:TERM|INT)|"
    r"CANCELLED AT \S+ \*\*\*|timeout: sending signal|Detected KeyboardInterrupt, attempting|"
    r"Main process exited, code=(?:killed|dumped), status=(?:15/TERM|2/INT)|"
    r"KILLED BY SIGNAL: (?:15|2)\b|WITH THE EXIT STRING: .*\(signal (?:15|2)\)|: line \d+: +\d+ Terminated\b|"
    rf"{_ASKED.pattern}|"
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
_HELPER = re.compile(
    r": line \d+: +\d+ (?:[A-Z]\w+ ){1,3} *(?:\( *)?(?:(?:sudo|nohup|exec) )*(?:\S*/)?"
    r"(?:(?:nvidia|rocm|amd|npu|xpu)-smi|dcgmi|nvtop|nvitop|gpustat|tensorboard|h?top|free|watch|while|"
    r"(?:vm|io|mp|d|pid)stat|sar|tail|tee|sleep|rsync|jupyter\S*)\b"
)
_LSF_REPORT = re.compile(r"Subject: Job \d+(?:\[\d+\])?: <.*> in cluster <.*> (Done|Exited)\s*$")
_LSF = "TERM_"  # what LSF reports of a job's end, before its output as well as after it
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
_WHO = re.compile(
    r"srun: error: (?P<srun>[\w.,\[\]-]+): tasks? (?P<tasks>[\d,-]+): |"
    r"error: Node failure on (?P<node>[\w.,\[\]-]+)|"
    r"error: Task launch for \S+ failed on node (?P<launch>[\w.-]+)|"
    r"pdsh@\S+: (?P<pdsh>[\w.-]+): ssh exited|^(?P<shell>[\w.-]+): -?(?:ba|da|z|k)?sh: |"
    r"ssh: connect to host (?P<ssh>\S+) port|"
    r"on node (?P<mpi>\S+) exited on(?: signal|\s*$)|\b[Rr]ank \d+, node (?P<megatron>[\w.-]+), device \d|"
    r"(?:at node \(ID: \w+, IP|[Mm]emory on the node \(IP): (?P<ray>[\w.:]+)|"
    r"^(?P<pals>[\w.-]+): (?:shepherd|rank \d+) died from|\bError from \w+@(?P<condor>[\w.-]+): "
)
# Where a line begins to show what somebody asks or a model answers, a record of data, or a program's text.
_DATA = re.compile(
    r"(?:^|\s)(?-i:raise [A-Za-z_][\w.]*\([rf]*[\"'])|"
    r"(?:^|[\s\])|>-])(?:prompt|question|instruction|answer|response|completion|generated|generation|sample|"
    r"example|predicted|user|assistant|human)s?[\s#\d\[\]()]*: |"
    r"[\"'](?:prompt|question|instruction|answer|response|completion|chosen|rejected|content|text)"
    r"[\"']: ?[\"'\[]",
    re.IGNORECASE,
)
# A field of a record or of a configuration, and its text; what a log's own fields are called that speak for
# the program; and how Python and others write an exception's class before a text.
_FIELD = re.compile(
    r"(?<![\w.-])([A-Za-z_][\w.-]{0,60})[\"']?\s{0,9}[:=]\s{0,9}"
    r"(\"(?:[^\"\\]|\\.){0,9000}\"|'(?:[^'\\]|\\.){0,9000}')"
)
_SPEAKS = re.compile(
    r"(?:.*[._-])?(?:log|msg|message|event|err|error|errors|exc\w*|exception|stack\w*|trace\w*|text[Pp]ayload|"
    r"body|line|what|cause|reason|detail|details|stderr|stdout|status|state)$|\w*(?:Error|Exception|Interrupt|Exit)$",
    re.IGNORECASE,
)
_CALL = re.compile(r"[A-Z]\w*(?<!Error)(?<!Exception)\([^()]*$")  # of an object that is printed
# pytest's last account of a test that failed, before what it raised.
_TEST = re.compile(r"(?:FAILED|ERROR) \S+\.py(?:::\S+)? - ")
# What comes after these is printed and has no consequence: the traceback that follows, or the exception.
_ASIDE = re.compile(
    r"Exception ignored (?:in|while|on)\b|^--- Logging error ---|^Error in atexit\._run_exitfuncs"
)
# A sentence that speaks of what may happen, or asks for it, before and behind the words of a failure; and
# words that say that it did happen.
_ADVICE = re.compile(
    r"\b(?:if|when(?:ever)?|unless|until|in case(?: of)?|to (?:avoid|prevent|reproduce|fix)|tips?|hints?|faq|"
    r"docs?|(?:last|previous|earlier|prior|other) (?:job|run|attempt|time|user)|"
    r"see (?:also|https?)|might|may|would|should|can (?:cause|lead)|hope(?:fully)?|without|never|no longer|"
    r"do(?:es)? not|don't|won't|not see|handl(?:es|ing)|simulat\w+|inject\w*|pretend\w*|"
    r"(?:test|check)(?:s|ed|ing)? (?:for|that|whether)|PASSED|SKIPPED|e\.g\.|looking for|"
    r"protects?|safe from|instead of)\b",
    re.IGNORECASE,
)
_MAY = re.compile(
    r"[\"'`)\]]*,? ?(?:errors?|exceptions?)?,? ?(?:may|might|can|could|would|will|should|"
    r"(?:is|are) (?:raised|fine|normal|expected|common|harmless)|often|sometimes|usually|handler|handling|"
    r"(?:try|lower|reduce|set|use|increase)\b(?! to allocate))\b",
    re.IGNORECASE,
)
_HAPPENED = re.compile(
    r"fail|error|abort|crash|cannot|can't|could(?: not|n't)|unable|fatal|due to|because|stopp|rais|exit|"
    r"got\b|hit\b|ran\b|run\b|died|terminat|caught|except|encounter|report|panic|kill|lost|went|caus|detect|receiv|"
    r"broke|reason|with\b|problem|after\b",
    re.IGNORECASE,
)
# What a sentence begins with that says what to do, or may be done.
_PROPOSES = re.compile(r"\W*(?:To|Use|Try|Please|Consider|You (?:can|may|should))\b")
# The program says itself that it goes on.
_OVER = re.compile(
    r"\((?:[^()]*, ?)?(?:ignored|ignoring|skipped|skipping|non-?fatal|will retry|retrying)[^)]*\)|"
    r"\b(?:falling back|will (?:be )?retr(?:y|ied)|retrying|(?:ignoring|skipping)(?: (?:it|this|the|that))?|"
    r"continuing(?: (?:anyway|without|with)|$)|going on|moving on|trying (?:batch size|again)|non-?fatal|"
    r"recovered from)\b",
    re.IGNORECASE,
)
# A warning: the program goes on.
_WARNING = re.compile(r"\b[A-Z]\w*Warning: |\b[Ww]arning: |\bWARNING\b|(?:^|\[)W\d* ")
# A level below that, as logging, loguru, glog, TensorFlow, NCCL and logfmt write it; and one above.
_BELOW = re.compile(
    r"(?:^|[\s\[(|])(?:INFO|DEBUG|TRACE)(?=[\s\]):|]|$)|(?:^|\s)[ID]\d{4} \d\d:\d\d|: [ID] \w+/|"
    r"\blevel\"?[=:] ?\"?(?:info|debug|trace)\b"
)
_ABOVE = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b")
_WARNED = re.compile(r"\bWARN(?:ING)?\b.*(?i:error|exception|fail|could ?n.t|could not|cannot|unable)")
# Exit codes of a program that brought a signal upon itself, as the launcher, a shell and ssh count them.
_OWN_SIGNALS = frozenset(
    code for signal in (4, 5, 6, 7, 8, 11) for code in (-signal, 128 + signal, 256 - signal)
)
# A launcher ends what is left by itself: Lightning, vLLM, Slurm, docker compose.
_FORCED = re.compile(
    r"Forcefully terminating all other processes|Got fatal signal from worker processes, shutting down|"
    r"srun: (?:Force Terminated |Job step aborted|(?:\S+: )*Terminating (?:StepId|job step)|forcing job )|"
    r"slurmstepd: error: \*\*\* .* CANCELLED AT |"
    r"\bAborting on container exit|^Gracefully stopping\.\.\. \(press Ctrl\+C again"
)
# Open MPI's account of the one rank that it noticed, and Hydra's of all that a signal ended.
_MPI_SIGNAL = re.compile(r"\bexited on signal \d|KILLED BY SIGNAL: |EXIT STRING: ")
_MPI_KILLED = re.compile(r"\bexited on signal 9\b|(?P<all>KILLED BY SIGNAL: 9\b|EXIT STRING: Killed)")
_CANCELLED = re.compile(r"CANCELLED AT \S+ \*\*\*|JobState=CANCELLED\b|^State: CANCELLED\b")  # by Slurm
_CONTAINER = re.compile(r"^\s*\S+ exited with code \d")  # of docker compose
_TIMED = "Time limit reached. Elapsed time is "  # Lightning's Timer
# torchrun's and Hydra's account of a process: its host, then its exit code.
_ELASTIC = re.compile(r"(?:\s+host +: |= +(?:RANK \d+ )?PID \d+ RUNNING AT (?:\S+@)?)(\S+)")
_OWN_WORDS = "  traceback : Traceback"
_ACCOUNT = re.compile(r"\s+(?:exitcode +|Exit code): ")
_NODE = re.compile(r"Node: {2,}(?:([\w.-]+)/\S*)?")  # of the pod that kubectl describes
_STATUS = re.compile(r"Status: {2,}(\w+)\s*$")  # and how that one ended
_OF_POD = re.compile(r"\s+(?:Reason|Exit Code|Message): ")
_SNIPPET = re.compile(r"\[Rank (\d{1,9}) Error Snippet\]:")  # whose exception Ray Train shows
_NOTICED = re.compile(r"noticed that process rank \d+ .* exited on\s*$")  # PRRTE's, whose next line says how
_ILLEGAL = re.compile(r"Illegal instruction|SIGILL|4/ILL|(?:code|code =|exitcode *:) -4\b|(?i:signal):? 4\b")
_BUS = re.compile(r"[Bb]us error|SIGBUS|7/BUS|(?:code|code =|exitcode *:) -7\b|(?i:signal):? 7\b")
_REASON = re.compile(r"\s*Reason: ")  # a word, of which a message may tell more
# And the process's rank, as torchrun and mpirun say it.
_RANK = re.compile(r"\s+(?:rank +: |Process name: \[\[\d+,\d+\],)(\d{1,9})")
# Exceptions that programs handle by another way to the same: of those nothing more is said.
_FALLBACK = re.compile(
    r"(?:[a-z_]\w*\.)*(?:Key|Attribute|Import|ModuleNotFound|FileNotFound|Lookup|NotImplemented)Error\b"
)
# Exceptions that a mistake in a program raises, and nothing of its surroundings; a level that tools print.
_MISTAKE = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:Value|Type|Key|Attribute|Index|Name|Assertion|ZeroDivision|Overflow|"
    r"NotImplemented|UnboundLocal|Recursion)Error\b"
)
# What one of those says where something else than the program may be why: a part that another version of a
# package has, or what is around it; an assertion without words may be of that too.
_ELSEWHERE = re.compile(
    r"AssertionError\W*$|\bmodule '[\w.]+' has no attribute\b|"
    r"\bunexpected keyword argument\b|\b(?:cuda|gpus?|nccl|nvidia|hosts?|nodes?|network|connect\w*|"
    r"time[d -]*out|permission|versions?|install\w*|environment|cluster|server|token|port|"
    r"devices?|drivers?|disk|memory|mount\w*)\b",
    re.IGNORECASE,
)
# What shows where to look, beside the exception or the cause that is told: what a shell, a cluster's manager
# or a library met before it. No failure by itself, as long as steps follow.
_CLUE = re.compile(
    r": line \d+: \S+: (?:command not found|No such file or directory)$|\bLost executor \S+ on \S|"
    r"\bWorker process \d+ was killed by signal|\bexceeded \d+% memory budget|\bCUDA initialization: "
)
# The kernel's word on a process by its number, and that of a launcher or a shell.
_KERNEL = re.compile(r"(?:Killed process |(?:SIGBUS to|Killing) \S{1,16}:)(\d+)\b")
# A program that the kernel killed, and that is none of those by which a training runs.
_BYSTANDER = re.compile(
    r"Out of memory: Kill(?:ed)? process \d+ \((?!python|pt_|ray|torch|deepspeed|accelerate|java|srun|slurm|"
    r"mpi|orted|prted|hydra|\S*train|ba?sh\)|sh\))"
)
_PID = re.compile(r"\(pid: (\d+)\)|\bPID (\d+)\b|: line \d+: +(\d+) ")
# Messages that go on in the lines below.
_RAY_MEMORY = "the node running low on memory"
_NCCL_FAILED, _OF_FILES, _LLM_C = "NCCL error in: ", "DatasetGenerationCastError: ", "[CUDA ERROR] at file "
_KERAS = "Exception encountered when calling "
# What an exception says that only tells where its cause is told.
_POINTS = re.compile(
    r"\bTrials did not complete\b|\b[Cc]heck the print statements above\b|\blook up to see its traceback\b|"
    r"\b(?:[Ss]ee|[Ll]ook at|[Cc]heck) (?:the )?(?:\w+ )?"
    r"(?:errors?|exceptions?|stack ?trace|traceback|logs?|root cause)\b"
    r".{0,9}\b(?:above|for (?:the |more )?(?:root cause|details))\b"
)
_LEVEL = re.compile(r"\bNCCL WARN\b|\bERROR\b|\bFATAL\b|\bCRITICAL\b|(?:^|\[)[EF]\d* |\b[Ee]rror: |\bNVRM: ")
# torchrun's account of processes that failed: its headings, and what it has no file for.
_HEADINGS = re.compile(r"\s*(?:\S+ FAILED|Failures:|Root Cause \(first .*|error_file: .*)\s*$")
_SENTENCE = 3  # words
_REPORTED = re.compile(
    r"(?!\s*(?:Type|Status|State|Reason|Phase): )"  # fields of an account
    r".*(?:[Ff]ailed\b|FAILED|\b[Ff]atal|FATAL|CRITICAL|\bERROR\b|[Ee]rror\b(?!\W+-?[\d.]+\s*$))"
)
_LOUD = re.compile(r"[Ee]rror|\bERR(?:OR)?\b|FATAL|[Ff]atal|CRITICAL|[Ff]ail(?:ed|ure)|FAILED|[Aa]bort")
# How programs of Unix say why they end: "fatal: ...", "srun: error: ...", "cp: cannot stat ...", "x: y: Is a
# directory"; and those that copy to a store: s5cmd, aws, gsutil, rclone, rsync, azcopy, mc. A figure that is
# called an error is none.
_STORE = re.compile(
    r"ERROR \"[^\"]+\": \S|(?:upload|download|copy|move|delete) failed: \S|rsync error: |mc: <ERROR> |"
    r"[A-Z]\w+Exception: (?:[45]\d\d |No URLs matched|\d+ files?/objects? could)|"
    r"\d{4}/\d\d/\d\d [\d:]+ (?:[A-Z]+ ?: )?(?:.*: )?Failed to \w+(?: with|:) |"
    r"Final Job Status: (?:Failed|CompletedWith)|\S+@\S+: Permission denied \("
)
_ERRNO = (
    "No such file or directory|Permission denied|command not found|Is a directory|Not a directory|"
    "File exists|Argument list too long|Input/output error|Connection refused|No space left on device|"
    "Disk quota exceeded|Read-only file system|Stale file handle|No route to host|Connection timed out"
)
_COMPLAINT = re.compile(
    r"(?:[\w./+@-]+(?:\[\d+\])?: ){0,3}(?:[Ff]atal(?: error)?|FATAL(?: ERROR)?|[Ee]rror|ERROR):\s+"
    r"(?!-?[\d.]+\b|(?:[Nn]o(?:ne)?|[Nn]ull|[Ff]alse)\b)\S|"
    r"[a-z./][\w./+-]*: (?:.*: )?(?:[Cc]annot|[Cc]an't|[Cc]ould not|[Uu]nable to|[Uu]nexpected|[Ii]nvalid|"
    r"[Uu]nknown|[Uu]nrecognized) \w|"
    rf"[a-z./][\w./+-]*: .*: (?:{_ERRNO})(?: \(\d+\))?$|"
    rf".*\b(?:[Uu]nable to|[Cc]annot|[Cc]ould not|[Ff]ailed to) \w.*\((?:{_ERRNO})\)$|"
    r"curl: \(\d+\) \w|docker: Error response from daemon: |(?:denied|unauthorized): \w|"
    r"make(?:\[\d+\])?: \*\*\* \["
)
# What of that keeps no program from its work: of terminals, users' names, versions, and libraries probed for.
_HARMLESS = re.compile(
    r"^wandb: |not a git repository|process group|cannot find name for|LD_PRELOAD|/dev/tty|terminal|\btput: |"
    r"dependency resolver|cannot find -l|ld returned|script returned exit code"
)
_ORDER: dict[Weight, int] = {weight: number for number, weight in enumerate(get_args(Weight))}
# Ways to end that one host does not cause in another: a host with one of them failed by itself.
_ALIKE: tuple[frozenset[Weight], ...] = (frozenset(("killed", "crash")),)
_BY_ITSELF: tuple[Weight, ...] = ("cause", "killed", "crash", "exception")
# What a line begins with, where it says whose it is: a host, then what torch, mpirun and srun put before it.
_WHOSE = re.compile(rf"{_PREFIXED}?(?:\S+: )?(?:\[(?:rank|default)\d+\]:|\[\S*\d+,\d+\]<std|\s*\d{{1,6}}: )?")
_MET: tuple[Weight, ...] = ("cause", "exception", "symptom")  # what a program can meet and get over
# Entries that say that no program can use the GPU; and those that only one says that uses it.
_NO_GPU = frozenset(("fabric_manager", "driver_mixed", "driver_too_old", "no_gpu", "container_gpu"))
_COMPUTED = frozenset((
    "illegal_memory_access", "index_out_of_range", "cuda_oom", "generation_memory", "cublas_alloc",
    "gpu_hardware",
))  # fmt: skip
_FULL, _SERVED = "cuda_oom", "generation_memory"  # of a GPU; where vLLM found it
_REFUSED, _ON_CPU = "host_memory_refused", "Falling back to cpu"  # where JAX says that it computes there
# What the innermost frame of a traceback tells of a failure: of Python's shared memory, of a program that is
# started, of what is removed or renamed, and of memory of the host that is pinned.
_SHARED = r"/multiprocessing/(?:synchronize|shared_memory|reductions)\.py "
_STARTS = r"/subprocess\.py |\bos\.(?:exec|spawn|posix_spawn)\w*\("
_REMOVES = r"\b(?:os|shutil)\.(?:remove|unlink|rmdir|removedirs|renames?|replace|rmtree|move)\(|\.unlink\(|"
_REMOVES += r"/shutil\.py \w*(?:rmtree|move)|/pathlib\S* (?:unlink|rmdir|rename|replace)\b"
_AT: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {
    "disk_full": (("dev_shm_dataloader", re.compile(_SHARED)),),
    "no_such_file": (
        ("shared_memory_gone", re.compile(_SHARED)),
        ("no_such_program", re.compile(_STARTS)),
        ("file_gone", re.compile(_REMOVES)),
    ),
    "cuda_oom": (("pinned_memory", re.compile(r"\bpin_memory\b|HostAlloc|MallocHost")),),
}
_AT["temporary_gone"] = _AT["file_gone"] = _AT["no_such_program"] = _AT["no_such_file"]
_PREEMPTED = "preempted"  # of which a program is told some steps before
_EVICTED = "pod_evicted"  # of which a message tells why
_ASSERTED = "index_out_of_range"
_WAITED = "nccl_watchdog_timeout"
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-f]+|\d+")  # what differs from rank to rank in a message
_ALIKE_SO_FAR = 80  # characters in which messages are alike
_MORE = 8  # digits that another one's may have more
_USUAL = 1000  # characters; longer lines are not remembered
_MOST = 10_000  # ranks and hosts whose signs are kept
_LAST = 64  # signs of a rank's chain of exceptions
_SHAPES = 1000  # of echoes
_AFTER = 3  # lines after an exception in which a program says that it goes on
NEAR = 50  # lines that launchers still print after an exception that ended a program
_FEW = 5  # signs of earlier runs, and clues
_KILLED = 64  # processes of which the kernel tells
_NEAR = 20  # lines that launchers print when they are ended
_ASIDE_LINES = 8  # that may be a failure's, among those of what is said aside
_GAP = 10_000  # lines without a sign, after which a program that tells no steps has gone on


@dataclass(frozen=True)
class Sign:
    """A line that may be the cause."""

    weight: Weight
    failure: str | None
    text: str
    host: str | None
    rank: int | None = None
    number: int | None = None  # of its line, from 1
    when: float | None = None  # seconds since 1970, by the clock of who wrote the log
    code: str | None = None  # an exception's: where in the program it was raised
    uncaught: bool = False  # its traceback begins where the program does, or torch's own hook printed it
    local_rank: int | None = None  # on its host, where torchrun's --tee says that
    own: bool = False  # its traceback ends in a line of the user's own program
    hooked: bool = False  # torch's own hook printed it: its process ended
    more: str = ""  # of its message: what the lines below say
    logged: bool = False  # a logger printed its traceback, which does not begin where the program does
    quoted: bool = False  # it may be of a text that a model wrote: then the training goes on

    @property
    def words(self) -> str:
        """Its whole message."""
        return f"{self.text} {self.more}".rstrip()

    @property
    def blame(self) -> Blame:
        """Who is to blame for an exception that has no entry: what a mistake alone raises, and in a line of
        the user's own program, is the program's; of others nobody knows."""
        mistake = self.own and _MISTAKE.match(self.text) and not _ELSEWHERE.search(self.text)
        return "work" if mistake else "unknown"

    @property
    def entry(self) -> KnownFailure | None:
        """The table's entry, where it is one of its failures."""
        return known_failures().get(self.failure or "")

    @property
    def is_echo(self) -> bool:
        """Whether it only reports that something else, or another rank, has failed."""
        return self.entry is not None and self.entry.is_echo

    @property
    def final(self) -> bool:
        """Whether it surely ended a process."""
        return self.uncaught or self.weight in ("killed", "crash")

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler says that it ended the job: its time was over, or it was cancelled."""
        return self.weight == "limit" or (self.weight == "external" and bool(_CANCELLED.search(self.text)))

    def follows(self, raised: Sign) -> bool:
        """Return whether it is a SIGKILL of which MPI's launcher gives account, that ended a process because
        of an exception which nothing caught before."""
        account = _MPI_KILLED.search(self.text) if self.weight == "killed" else None
        sure = raised.uncaught and account is not None and bool(raised.own or account["all"])
        return sure and (raised.number or 0) < (self.number or 0)

    @property
    def way(self) -> tuple[Weight, str | None, str]:
        """What is the same of two that ended the same way: of an exception without an entry its class, and
        what it says without the names in it."""
        named = self.weight == "exception" and self.failure is None
        return self.weight, self.failure, _NAMES.sub("", self.text)[:_ALIKE_SO_FAR] if named else ""

    @property
    def points(self) -> bool:
        """Whether it is an exception that only tells where its cause is told."""
        return self.weight == "exception" and bool(_POINTS.search(self.text))

    @property
    def order(self) -> tuple[int, bool]:
        """How little it explains."""
        return _ORDER[self.weight], self.points


class LineSpot(Protocol):
    """The place of a line, and what follows from it."""

    @property
    def number(self) -> int | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def when(self) -> float | None: ...
    @property
    def code(self) -> str | None: ...
    @property
    def uncaught(self) -> bool: ...
    @property
    def local_rank(self) -> int | None: ...
    @property
    def own(self) -> bool: ...
    @property
    def hooked(self) -> bool: ...
    @property
    def below(self) -> Sequence[str]: ...
    @property
    def above(self) -> tuple[str, LineSpot] | None: ...
    @property
    def serving(self) -> bool: ...
    @property
    def innermost(self) -> str: ...
    @property
    def quoted(self) -> Literal["no", "perhaps", "yes"]: ...
    def further(self, text: str) -> Sequence[str]: ...
    @property
    def heading(self) -> str: ...


_Key = tuple[Weight, str | None, int | None]  # with the host, or else a pod, and the rank


@dataclass
class _Echo:
    """Lines of one shape that only say that something else has failed. `heard`: how those begin whose sign is
    kept already, as far as that names their sender."""

    failure: str
    search: Callable[[str], object]
    begin: int
    heard: set[str] = field(default_factory=set)


@dataclass
class Signs:
    """The evidence of a failure, as lines come in.

    A job that goes on was not ended by what was written before: of each weight, host and rank, the first sign
    counts that came after the last but one mark of progress (ranks' lines may arrive out of order).
    """

    now: dict[_Key, Sign] = field(default_factory=dict)
    earlier: dict[_Key, Sign] = field(default_factory=dict)  # before the last mark
    kept: dict[_Key, Sign] = field(default_factory=dict)  # a scheduler's word, after which steps may be told
    traceback: bool = False
    got_over: Sign | None = None  # the last exception of a traceback after which it went on
    before: list[Sign] = field(default_factory=list)  # what ended runs before the last one in this log
    run_begin: int = 0  # the number of the first of the last signs that stand close together, and of the last
    run_end: int = 0
    met: dict[_Key, Sign] = field(default_factory=dict)  # what the program says that it got over, or handled
    account: bool = False  # a process's own traceback is part of torchrun's account of it
    aside: int = 0  # lines in which what a program says aside may end
    forced: bool = False  # a launcher says that it ends the processes itself
    since: int = 0  # marks of progress after the last one
    ends: int = 0  # of processes, that were told
    broke: bool = False  # it says in so many words that a process of the job did not end well
    elastic: str | None = None  # the host of the process that torchrun gives account of
    elastic_rank: int | None = None
    node: str | None = None  # of the pod that kubectl describes
    status: str = ""  # of that pod
    pods: int = 0  # that it has described
    normal: list[PodEvent] = field(default_factory=list)  # what went well with pods
    kernel: dict[str, tuple[str, str, LineSpot]] = field(default_factory=dict)  # by process: failure, line
    clues: dict[str, Sign] = field(default_factory=dict)  # by their shape
    on_cpu: bool = False  # JAX says that it computes on the host's processor
    reports: int = 0  # LSF's, of which each is another job's
    succeeded: bool = False  # that pod: what is said of its containers' earlier states ended nothing
    verdict: bool = False  # what ran all says that it went well, whatever its attempts met
    attempted: bool = False  # torchrun tells of a process that failed, and not yet that it gives up
    relaunched: bool = False  # it began the training again after that
    snippet: tuple[int, int] | None = None  # the rank whose exception Ray shows, and after which line
    exited: bool = False  # a process ended by an exit code of its own
    task: tuple[str, int] | None = None  # the host of a Ray task, and the line that its traceback follows
    root: bool = False  # the account of the process that failed first begins
    first: int | None = None  # its rank
    spot: LineSpot | None = None  # of the line that is looked at
    onward: LineSpot | None = None  # of the last mark of progress
    last: str = ""  # the last sign of any kind
    last_number: int = 0
    marked: bool = False  # it tells its steps
    chains: dict[int | None, deque[str]] = field(default_factory=dict)  # by rank: signs of its last chain
    caused: set[int | None] = field(default_factory=set)  # ranks whose next exception is of the same chain
    # By rank: the echo that its last exception was, where the next one follows from it; and for that one.
    linked: dict[int | None, str] = field(default_factory=dict)
    lost: dict[int | None, str] = field(default_factory=dict)
    symptoms: dict[str, _Echo] = field(default_factory=dict)  # by their shape
    idles: set[str] = field(default_factory=set)  # shapes that tell of no failure, whatever their digits
    echoes: int = 0  # lines that say only that something else has failed
    collectives: Collectives = field(default_factory=Collectives)
    finished: bool = False  # the training has ended; what comes is the end of the program
    counted: bool = False  # by the number of its last step, and by no word
    end: int | None = None  # the number of the first line that says so
    last_end: int | None = None  # and of the first one after the last step
    late: str = ""  # the first line that says that a process crashed after that
    shapes: set[str] = field(default_factory=set)  # of all lines that may be a reason, also of earlier ones

    def line(self, text: str, host: str | None, raw: str = "", shape: str = "") -> None:
        """Read a line, without its host's prefix. What it quotes of others does not concern this job. `raw`:
        with it and with colours; `shape`: that without its digits."""
        if any(hint in text for hint in COLLECTIVES):
            self.collectives.line(text, self._rank(), self.spot.below if self.spot else ())
        echo = self.symptoms.get(shape)
        if echo and echo.search(text):
            self._add("symptom", echo.failure, text, (host,))
            if len(echo.heard) < _MOST and "\x1b" not in raw:
                echo.heard.add(raw[: echo.begin])
            return
        if any(hint in text for hint in HINTS):
            before = self.echoes
            if quoted := _DATA.search(text):
                text = text[: quoted.start()]
            text = _unquoted(text)
            if self._look(text, host) and len(self.idles) < _SHAPES and _is_plain(raw, text):
                self.idles.add(shape)
            if shape and self.echoes > before and not quoted and len(raw) < _USUAL:
                entry = find(text)
                if entry and entry.phrase.weight == "symptom" and not _WHO.search(text):
                    self._remember(entry, raw, shape)

    def idle(self, raw: str, shape: str, number: int) -> bool:
        """Return whether a line reports no failure, as one of its shape did not, or says only that the
        program goes on; and nothing right before it was caught: data loaders print millions of these."""
        if self.aside or number - self.last_number <= _AFTER:
            return False
        if shape in self.idles:
            return True
        only = any(word in raw for word in _ONWARD) and not any(hint in raw for hint in _REASONS)
        if only and shape and len(self.idles) < _SHAPES:
            self.idles.add(shape)
        return only

    def again(self, raw: str, shape: str, number: int) -> bool:
        """Return whether a line repeats what its rank has printed, as those of thousands do that lost another
        one: then it is counted, and nothing in it is new."""
        echo = self.symptoms.get(shape)
        if echo is None or raw[: echo.begin] not in echo.heard or not echo.search(raw):
            return False
        if number - self.last_number > _GAP and not self.marked:
            return False
        self.echoes += 1
        self._run_on(number)
        self.last, self.last_number = raw, number
        return True

    def restart(self) -> None:
        """Begin another run: steps are counted anew. What ended a process ended the run before."""
        for sign in (*self.earlier.values(), *self.now.values()):
            if sign.final and sign not in self.before and len(self.before) < _FEW:
                self.before.append(sign)
        if self.attempted:
            self.relaunched, self.attempted, self.broke = True, False, False
        self._keep(math.inf)

    def progress(self) -> None:
        """Record another step."""
        self.marked, self.finished, self.onward = True, False, self.spot
        self.since += 1
        self.met.clear()
        self.clues.clear()
        self._drop([each for each in (*self.now.values(), *self.earlier.values()) if each.quoted])
        if self.kept and self.spot:
            self._keep((self.spot.number or 0) - NEAR)
        if self.now or self.earlier:
            raised = [each for each in self.earlier.values() if each.code]
            self.got_over = raised[-1] if raised else self.got_over
            self.now, self.earlier, self.echoes = {}, self.now, 0
            self.collectives, self.exited = Collectives(), False
            self.forget()

    def _drop(self, dropped: Sequence[Sign]) -> None:
        """Forget signs that are of another job, or of a text that a model wrote."""
        if dropped:
            self.now = {key: sign for key, sign in self.now.items() if sign not in dropped}
            self.earlier = {key: sign for key, sign in self.earlier.items() if sign not in dropped}

    def overrule(self) -> None:
        """Take the word that all went well in the end: what ended attempts before that ended nothing."""
        self.restart()
        self.now, self.earlier, self.got_over, self.late, self.verdict = {}, {}, None, "", True
        self.broke = self.traceback = False

    def _keep(self, since: float) -> None:
        """Keep LSF's word on the end, and of what a program is told before its end that since this line."""
        lasting = {key: sign for key, sign in self.kept.items() if (sign.number or 0) >= since}
        self.kept = lasting | {key: sign for key, sign in self.kept.items() if sign.text.startswith(_LSF)}

    def finish(self) -> None:
        """Record that the training has ended as it should."""
        if self.spot and not self.finished:
            self.last_end = self.spot.number
            self.end = self.last_end if self.end is None else self.end
        self.finished = True

    def decisive(self) -> Sign | None:
        """Return the sign that explains most: a cause before what it led to; None: there is no sign.

        The scheduler's words come before the signals that it sent; a signal that a host's program brought
        upon itself before the exceptions of others. Where torchrun reports which rank failed first, and that
        one gives a reason of its own, or none, it is this.
        """
        best = min(self._all(), key=lambda sign: sign.order, default=None)
        best = self._of_the_job(best) if best else None
        best = self._raised_elsewhere(self._raised_before_it(best)) if best else None
        best = self._before(self._raised_after(best)) if best else None
        if best is None or self.first is None or best.weight not in (*_BY_ITSELF, "symptom", "exit"):
            return best
        own = [sign for sign in self._all() if sign.rank == self.first]
        first = min(own, key=lambda sign: _ORDER[sign.weight], default=best)
        if best.failure == _ASSERTED and first.failure == "illegal_memory_access":
            return best  # what the GPU itself says, of whichever rank
        nobodys = best.rank is None and best.weight in _BY_ITSELF  # who says it may be that very rank
        return best if first.weight == "symptom" or (first.weight == "exit" and nobodys) else first

    def offhand(self, sign: Sign) -> bool:
        """Return whether a program only mentions in passing what else would be the cause: not by an
        exception, a level or an exit, and nothing that befalls a host."""
        entry = sign.entry
        plain = sign.weight == "cause" and not (is_exception(sign.text) or self.traceback or self.broke)
        return plain and entry is not None and entry.blame != "host" and not _LEVEL.search(sign.text)

    def in_a_sentence(self, sign: Sign) -> bool:
        """Return whether the words of a failure are in the middle of a sentence that does not say that it
        happened."""
        if sign.weight != "cause" or sign.code or is_exception(sign.text):
            return False
        entry = find(sign.text)
        begin = _before_it(sign.text, entry) if entry and not _LEVEL.search(sign.text) else None
        return begin is not None and bool(re.search(r"\w [\"'`]?$", begin)) and not _HAPPENED.search(begin)

    def passed(self, sign: Sign) -> bool:
        """Return whether a mark of progress came after a sign: one, since two leave none."""
        return not self.stands(sign) and any(each is sign for each in self.earlier.values())

    def ended_by(self, sign: Sign) -> bool:
        """Return whether an exception surely ended a process of the last run in this log."""
        return sign.hooked and not sign.is_echo and sign not in self.before

    def asked(self, sign: Sign | None) -> bool:
        """Return whether a program says that it was asked to end, and tells no step after that: what it says
        of its end is no end of the training, unless it had said that before."""
        if sign is None or sign.weight != "external" or not _ASKED.search(sign.text):
            return False
        return self.last_end is None or (sign.number or 0) < self.last_end

    def ended_after(self, sign: Sign | None) -> bool:
        """Return whether a program that was told that its time or place is over said its end after that."""
        if sign is None or sign.weight != "limit" or self.last_end is None:
            return False
        return (sign.number or 0) < self.last_end

    def stands(self, sign: Sign) -> bool:
        """Return whether a sign is a scheduler's word on the end, whatever the program does after it."""
        return any(each is sign for each in self.kept.values())

    def waits_after_the_end(self) -> str:
        """Return the line that tells of a rank which waited in vain for others when the training had ended;
        empty: there is none. That of others' connections follows from their own end."""
        late = [each for each in self.now.values() if each.failure == _WAITED]
        return next((each.text for each in late if self.last_end and (each.number or 0) > self.last_end), "")

    def after_the_end(self) -> Sign | None:
        """Return the first exception of a traceback that was raised when a training had ended, or else the
        scheduler's word that it ended the job then; None: there is none, or only what follows from the end of
        other ranks."""
        end = self.end
        if end is None:
            return None
        late = [each for each in self.now.values() if (each.number or 0) > end]
        raised = [each for each in late if each.weight in ("cause", "exception") and self.traceback]
        told = next((each for each in raised if each.code or is_exception(each.text)), None)
        return told or next((each for each in late if each.scheduled), None)

    def _of_the_job(self, best: Sign) -> Sign:
        """Return another cause where a program was killed for want of memory that is no training's. Else the
        same sign."""
        if not _BYSTANDER.search(best.text):
            return best
        causes = (each for each in self._all() if each.weight == "cause" and each is not best)
        return next((each for each in causes if not _BYSTANDER.search(each.text)), best)

    def _raised_elsewhere(self, best: Sign) -> Sign:
        """Return an exception that nothing caught in the program of another rank than the one that was ended
        from outside: the launcher ended that one because of it. Else the same sign."""
        if best.weight != "external":
            return best
        raised = (each for each in self._all() if each.weight == "exception" and each.uncaught and each.own)
        return next((each for each in raised if (each.host, each.rank) != (best.host, best.rank)), best)

    def _raised_before_it(self, best: Sign) -> Sign:
        """Return an exception that nothing caught in a program of MPI's instead of a SIGKILL of which its
        launcher gives account: that ends the other ranks so because of it. Else the same sign."""
        raised = (each for each in self._all() if each.weight == "exception")
        return next((each for each in raised if best.follows(each)), best)

    def _raised_after(self, best: Sign) -> Sign:
        """Return a mistake of the program, or what surely ended it, raised after a line without a traceback
        and without a level: the program got over that. What befell a host counts still, unless a step was
        made after it. Else the same sign."""
        if best.weight != "cause" or best.code or _LEVEL.search(best.text):
            return best
        raised = (each for each in self.now.values() if each.weight == "exception")
        later = [each for each in raised if (each.number or 0) > (best.number or 0)]
        if self.in_a_sentence(best):
            return next(iter(later), best)
        entry = best.entry
        on = self.passed(best) or (entry is not None and entry.blame != "host")
        sure = (each for each in later if each.code and (_MISTAKE.match(each.text) or (on and each.uncaught)))
        return next(sure, best)

    def _before(self, best: Sign) -> Sign:
        """Return an exception that another rank raised earlier, by its time stamps, than one whose name is in
        the table. Else the same sign."""
        entry = best.entry
        if entry is None or entry.blame != "work" or not best.code or best.when is None:
            return best
        raised = (each for each in self._all() if each.weight == "exception" and each.code)
        earlier = [each for each in raised if each.when is not None and each.when < best.when]
        other = [each for each in earlier if (each.host, each.rank) != (best.host, best.rank)]
        return min(other, key=lambda each: each.when or 0.0, default=best)

    @property
    def raising(self) -> bool:
        """Whether a traceback is among the lines that count."""
        return self.traceback and self.since < 2

    def by_weight(self) -> list[Sign]:
        """Return all signs, those that explain most first."""
        return sorted(self._all(), key=lambda sign: sign.order)

    def by_themselves(self) -> tuple[tuple[str, str | None], ...]:
        """Return (host, failure) of all hosts that ended in the decisive way, and not because of another."""
        best = self.decisive()
        if best is None:
            return ()
        alike = next((each for each in _ALIKE if best.weight in each), frozenset((best.weight,)))
        failures: dict[str, str | None] = {}
        for sign in [best, *(sign for sign in self._all() if sign.weight in alike)]:
            if sign.host:
                failures.setdefault(sign.host, sign.failure)
        return tuple(failures.items())

    def _all(self) -> list[Sign]:
        """Return all signs, the earliest first. Where a program raised an exception and then crashed, it is
        the exception; where MPI's launcher says that a process crashed, it killed the others itself."""
        signs = self.earlier | {key: sign for key, sign in self.now.items() if key not in self.earlier}
        signs |= self.kept
        raised = {host for weight, host, _ in signs if weight == "exception"}
        of_mpi = [each for each in signs.values() if _MPI_SIGNAL.search(each.text)]
        crashed = any(each.weight == "crash" for each in of_mpi)
        return [
            sign
            for sign in signs.values()
            if (sign.weight != "crash" or sign.host not in raised)
            and not (crashed and sign.weight == "killed" and sign in of_mpi)
        ]

    def _add(
        self,
        weight: Weight,
        failure: str | None,
        text: str,
        hosts: Sequence[str | None],
        rank: int | None = None,
        of: str | None = None,
    ) -> None:
        """Keep a sign. `of`: the pod that it is about, where that is named."""
        self.last = text = _MARK.sub("", text)
        hosts = (self.node,) if weight == "scheduler" and self.node and not any(hosts) else hosts
        spot = self.spot
        if spot is not None:
            rank = spot.rank if rank is None else rank
            number = spot.number or 0
            if rank is None and self.snippet and number - self.snippet[1] <= NEAR and weight in _MET:
                rank = self.snippet[0]
            self._run_on(number)
            if not self.marked and number - self.last_number > _GAP:
                self.now = {}
                self.forget()
            self.last_number = number
        if weight == "exception" and rank in self.lost:
            weight, failure = "symptom", self.lost[rank]
        self.echoes += weight in ("symptom", "exit")
        self.ends += weight in ("killed", "crash", "exit", "external")
        for host in hosts:
            key = weight, of or host, rank
            old = self.now.get(key) if weight in ("cause", "scheduler", "exception") else None
            vague = old and old.failure in (failure, _EVICTED) and _REASON.match(old.text)
            if vague and not _REASON.match(text):
                del self.now[key]
            elif old and weight == "cause" and self._outdone(old, failure, text):
                self.met[key] = self.now.pop(key)
            elif old and old.points and not _POINTS.search(text):
                del self.now[key]
            if key not in self.now and len(self.now) < _MOST:
                quoted = spot.quoted if spot and weight in ("cause", "exception") else "no"
                if quoted == "yes":
                    continue
                if weight in _MET and len(self.shapes) < _SHAPES:
                    self.shapes.add(shape_of(text, host))
                raised = weight == "exception" or (self.traceback and _EXCEPTION.match(text))
                place = (spot.number, spot.when, None, False, spot.local_rank) if spot else ()
                sign = replace(Sign(weight, failure, text, host, rank, *place), more=self._further(text))
                if spot and raised:
                    sign = replace(sign, code=spot.code, uncaught=spot.uncaught, own=spot.own)
                    sign = replace(sign, hooked=spot.hooked, quoted=quoted == "perhaps")
                    ways, innermost = _AT.get(failure or "", ()), spot.innermost if failure in _AT else ""
                    own = next((each for each, at in ways if at.search(innermost)), failure)
                    sign = replace(sign, failure=own)
                    heading = spot.heading if sign.code and not sign.uncaught else ""
                    sign = replace(sign, logged=is_logged(heading))
                    if sign.logged and goes_on(heading):
                        self.met[key] = sign
                        continue
                self.now[key] = sign
                self.ends += sign.uncaught
                told = find(text) if weight == "limit" else None
                if text.startswith(_LSF) or (told and told.failure.id == _PREEMPTED):
                    self.kept.setdefault(key, sign)
        if rank in self.chains:
            self.chains[rank].append(text)

    def _further(self, text: str) -> str:
        """Return what the lines below say of the same exception; empty: nothing that is known to."""
        below = [line.strip() for line in self.spot.further(text) if line.strip()] if self.spot else []
        last = next((place for place, line in enumerate(below) if line == "Last error:"), None)
        if _NCCL_FAILED in text:
            below = below[last : last + 2] if last is not None else []
        elif _OF_FILES in text:
            below = list(takewhile(lambda line: not line.startswith("Please"), below))
        elif _NOTICED.search(text):
            below = below[:1]
        elif _LLM_C in text or _KERAS in text or (is_exception(text) and text.rstrip().endswith(":")):
            below = [line for line in below[:1] if not _tells_an_end(line)]
        else:  # Java's exception, below that of Python's
            below = [line for line in below[:1] if line.startswith(": ")]
        return shortened(" ".join(below).removeprefix(": ")) if re.search(r"\w", "".join(below)) else ""

    def _run_on(self, number: int) -> None:
        """Add a sign to those that are close together, or begin other ones."""
        if number - self.run_end > NEAR:
            self.run_begin = number
        self.run_end = number

    def _outdone(self, old: Sign, failure: str | None, text: str) -> bool:
        """Return whether another line of the same weight is the cause: it was raised, where the first only
        mentions a failure; or the GPU has computed, though a line says that there is none; or the program was
        training already when it was raised, and what was mentioned in passing is of its start."""
        if old.failure in _NO_GPU and failure in _COMPUTED and re.search(r"CUDA|\.cu:\d", text):
            return True
        if not (is_exception(text) and self.traceback):
            return False
        before, after = old.entry, known_failures().get(failure or "")
        start = before is not None and before.phase not in ("training", "checkpoint", "resume")
        later = start and after is not None and after.phase in ("training", "checkpoint")
        passing = not old.code and not is_exception(old.text) and not _LEVEL.search(old.text)
        return self.in_a_sentence(old) or (later and passing)

    def _asked_till_now(self) -> str | None:
        """Return the failure that the program did not get past before it was ended from outside: its last
        message, where that is no echo of another rank's; None: there is none."""
        entry = find(self.last) if self.last and self.spot else None
        if entry is None or entry.phrase.weight != "symptom" or self.spot is None:
            return None
        own = not entry.failure.is_echo
        return entry.failure.id if own and (self.spot.number or 0) - self.last_number <= _NEAR else None

    def _rank(self) -> int | None:
        """Return the rank that wrote the line; None: it is not named."""
        return self.spot.rank if self.spot else None

    def _handled(self) -> None:
        """Drop the exception that a rank printed last, and those that led to it: the program caught them, and
        failed by another one. But no program means to catch a full device, or a row that cannot be read."""
        rank = self._rank()
        for key, sign in list(self.now.items()):
            entry = sign.entry
            kept = entry is not None and (entry.phase in ("training", "checkpoint") or entry.id == BAD_ROW)
            own = sign.rank == rank and sign.text in self.chains.get(rank, ())
            if own and sign.weight in ("cause", "exception") and not kept:
                del self.now[key]
                if not _FALLBACK.match(sign.text):
                    self.met[key] = sign

    def _get_over(self) -> None:
        """Drop what its rank printed last: right after it, the program says that it goes on."""
        spot, rank = self.spot, self._rank()
        if spot is None or (spot.number or 0) - self.last_number > _AFTER:
            return
        for key, sign in list(self.now.items()):
            last = sign.rank == rank and sign.text == self.last
            if last and sign.weight in ("cause", "exception"):
                self.met[key] = self.now.pop(key)

    def _hosts(self, text: str, host: str | None, account: bool) -> Sequence[str | None]:
        """Return the hosts that a line names, or else the one that wrote it. `account`: of a process's end.
        """
        named, number = _WHO.search(text), (self.spot.number or 0) if self.spot else 0
        if named is None and _RAY_MEMORY in text and self.spot:
            named = next(filter(None, map(_WHO.search, self.spot.further(text))), None)
        if host is None and self.task and number - self.task[1] <= NEAR and is_exception(text):
            host, self.task = self.task[0], None  # what the driver raises because of it is its own
        if named is None:
            nccl = _NCCL.match(text)
            return (host or (nccl[1] if nccl else self.elastic if account else None),)
        hosts = split_hosts(next(name for name in named.groups() if name))
        if named["tasks"] and len(hosts) == 1:
            for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", named["tasks"]):
                for task in range(int(first), min(int(last or first), int(first) + _MOST) + 1):
                    if self.elastic is None:  # under torchrun tasks are no ranks
                        self._place(task, hosts[0])
        return hosts

    def _place(self, rank: int | None, host: str | None) -> None:
        """Assign what a rank has printed to the host that a launcher's report of its end names."""
        for signs in (self.now, self.earlier):
            for key, sign in signs.items():
                if sign.rank == rank and sign.host is None:
                    signs[key] = replace(sign, host=host)

    def _remember(self, entry: Recognised, raw: str, shape: str) -> None:
        if len(self.symptoms) < _SHAPES and (match := _WHOSE.match(raw)):
            search = entry.phrase.expression.search
            self.symptoms[shape] = _Echo(entry.failure.id, search, match.end() + _MORE)

    def forget(self) -> None:
        """Forget whose echoes were read: they may have other hosts by now, or other signs are kept."""
        for echo in self.symptoms.values():
            echo.heard.clear()

    def _is_late(self, code: int, signal: bool) -> bool:
        """Return whether a process's end, or what follows from it, comes after a training that ended well."""
        if not self.finished or not (code or signal) or self.broke:
            return False
        weights = {weight for weight, *_ in (*self.now, *self.earlier)}
        crash = signal or code in _OWN_SIGNALS
        return (crash and not {"cause", "exception"} & weights) or bool(self.late)

    def _leads(self, text: str) -> bool:
        """Return whether a line only introduces those after it: a traceback, a report on a process; or
        belongs to an aside, or to what went well."""
        if _ASIDE.search(text):
            self.aside = _ASIDE_LINES
            return True
        if self.aside:
            self.aside -= 1
            if _EXCEPTION.match(text):
                self.aside = 0
            if self.aside == 0 or "Traceback (most recent call last)" in text or text[:1].isspace():
                return True
        if "Traceback (most recent call last)" in text:
            self.account = text.startswith(_OWN_WORDS)
            self._begin_traceback()
        elif _CAUSED in text:
            self._lead()
            self._link()
            self.caused.add(self._rank())
        elif _HANDLED in text:
            self._lead()
            self._link()
            self._handled()
        elif self.traceback and _SOURCE.match(text):
            pass
        elif "Root Cause (first observed" in text:
            self.root = True
        elif (match := _TASK.search(text)) and self.spot is not None:
            self._begin_traceback()
            self.task = match[1], self.spot.number or 0
        elif _HELPER.search(text):
            pass
        elif lsf := _LSF_REPORT.match(text):
            self._begin_report(well=lsf[1] == "Done")
        elif match := _ELASTIC.match(text):
            self.elastic = match[1]
        elif match := _NODE.match(text):
            self.node, self.succeeded, self.status, self.pods = match[1], False, "", self.pods + 1
        elif (event := self._event(text)) and self._went_well(event):
            pass
        elif match := _STATUS.match(text):
            self.status, self.succeeded = match[1], match[1] == "Succeeded"
        elif self.succeeded and _OF_POD.match(text):
            pass
        elif (match := _SNIPPET.search(text)) and self.spot is not None:
            self.snippet = int(match[1]), self.spot.number or 0
        elif match := _RANK.match(text):
            self.elastic_rank = int(match[1])
            if self.root:
                self.root, self.first = False, self.elastic_rank
                self._place(self.first, self.elastic)
        else:
            return False
        return True

    def _begin_report(self, well: bool) -> None:
        """Read how LSF reports another job of the same log: its words on the jobs before are of those."""
        self.succeeded, self.reports = well, self.reports + 1
        if self.reports > 1:
            self.restart()
            ended = [each for each in self.kept.values() if each.text.startswith(_LSF)]
            self.before = [*ended, *self.before][:_FEW]
            self.kept.clear()
            if well:
                self.now, self.earlier, self.broke, self.got_over = {}, {}, False, None
            else:
                self._drop(ended)

    def _event(self, text: str) -> PodEvent | None:
        return event_of(text, f"#{self.pods}")

    def _went_well(self, event: PodEvent) -> bool:
        """Return whether all went well with a pod, and drop the earlier warnings of that; or whether it did
        after this warning, by their ages: lists of events are in no order."""
        if not event.normal or not event.stage:
            return any(each.ends(event, later=False) for each in self.normal)
        if len(self.normal) < _MOST:
            self.normal.append(event)
        for signs in (self.now, self.earlier, self.kept):
            for key, sign in list(signs.items()):
                warning = event_of(sign.text, key[1] or "")
                if warning and not (warning.normal and warning.stage) and event.ends(warning, later=True):
                    del signs[key]
        self.succeeded = self.succeeded or (event.stage == OVER and not event.of.startswith("pod/"))
        return True

    def _begin_traceback(self) -> None:
        self.traceback, self.since = True, 0
        if self.spot is not None:
            self._run_on(self.spot.number or 0)
        rank = self._rank()
        self.lost.pop(rank, None)
        if echo := self.linked.pop(rank, None):
            self.lost[rank] = echo
        if rank not in self.caused and (rank in self.chains or len(self.chains) < _MOST):
            self.chains[rank] = deque(maxlen=_LAST)
        self.caused.discard(rank)

    def _lead(self) -> None:
        """Take the exception above, which led to another one, where its name is none that the sieve knows."""
        here, above = self.spot, self.spot.above if self.spot else None
        if above:
            text, self.spot = above
            self._add("exception", None, text, (None,))
            self.spot = here

    def _link(self) -> None:
        """Remember that what its rank raises next follows from the loss of another one."""
        rank = self._rank()
        echo = echo_of((self.chains.get(rank) or [self.last])[-1]) or self.lost.get(rank)
        if echo:
            self.linked[rank] = echo

    def _follows(self, text: str) -> bool:
        """Return whether a line belongs to those before it: the program goes on after an exception, or it is
        the exception of a process that torchrun reports on."""
        if _OVER.search(text) and not (is_exception(text) or _PROPOSES.match(text) or find(text)):
            self._get_over()
            return True
        if not (self.account and text[:2] == "  " and _EXCEPTION.match(text[2:])):
            return False
        self.account, match = False, find(text[2:])
        weight: Weight = match.phrase.weight if match else "exception"
        self._add(weight, match.failure.id if match else None, text[2:], (self.elastic,), self.elastic_rank)
        return True

    def _look(self, text: str, host: str | None) -> bool:
        """Read a line. Return whether it reports no failure."""
        self.on_cpu = self.on_cpu or _ON_CPU in text
        if self._leads(text) or self._follows(text):
            return False
        hosts: Sequence[str | None]
        test = _TEST.match(text)
        text = text[test.end() :] if test else text
        left, failed = _EXITS.search(text), False
        codes = {name: int(code) for name, code in left.groupdict().items() if code} if left else {}
        crashed_rank = next((codes.pop(name) for name in _RANKS if name in codes), None)
        name, code = next(iter(codes.items()), ("", 0))
        code = -code if name in _SIGNALS else code
        if name == "elastic":
            self.attempted = not _ACCOUNT.match(text)
        self.forced = self.forced or bool(_FORCED.search(text))
        if self.forced and _CONTAINER.match(text):
            return False
        shell = None if self.forced else _SHELL.search(text)
        match = None if self.forced and _SHELL.search(text) else find(text)
        if match is None and (_LLM_C in text or _NCCL_FAILED in text or _NOTICED.search(text)):
            match = find(f"{text} {self._further(text)}")
        if _CLUE.search(text) and len(self.clues) < _FEW and self.spot:
            clue = Sign("symptom", match.failure.id if match else None, text, None, None, self.spot.number)
            self.clues.setdefault(shape_of(text), clue)
        if match and _SRUN_KILLED.search(text) and (self.forced or self.now):
            match, failed = None, True  # srun ends the other tasks of a step itself
        native = match is None and _WHAT.match(text)
        hangs = "watchdog hang" in text
        broken = hangs or (match is not None and match.phrase.weight == "crash")
        crashed = bool(native or broken or _CRASH.search(text) or (shell and shell["how"] != "Killed"))
        if self._is_late(code, crashed):
            self.late = self.late or text
            return False
        failed = failed or bool(_FAILED.search(text))
        if shell or failed or (code and code not in (-15, -2)):  # those were ended because of another
            self.broke = True
        hosts = self._hosts(text, host, left is not None)
        weights = {weight for weight, *_ in (*self.now, *self.earlier)}
        rank = self.elastic_rank if _ACCOUNT.match(text) else crashed_rank
        self._by_number(text, match, hosts, rank)
        if (match and match.phrase.weight == "limit") or _TIMED in text:
            # What had failed by itself is ended then as well: that is no timeout.
            if not {"cause", "exception", "crash"} & weights:
                self._add("limit", None, text, (None,))
            return False
        sent = match.failure.id if match and match.phrase.weight == "external" else None
        if sent or _EXTERNAL.search(text):
            consequence = self.exited or (self.broke and _CANCELLED.search(text))
            if not (consequence or {"cause", "exception", "crash", "killed"} & weights):
                asked = self._asked_till_now()
                weight: Weight = "cause" if asked else "external"
                self._add(weight, asked or sent, self.last if asked else text, hosts)
            return False
        if match and match.phrase.weight in ("cause", "symptom") and _goes_on(text, match):
            match = None
        if match and match.phrase.weight in _MET and _is_advice(text, match):
            match = None
        raised = _WHAT.match(text) or ((self.traceback or test) and _EXCEPTION.match(text))
        if match and match.phrase.weight == "exception" and not raised:
            match = None  # the program says what it met, and goes on
        if match and match.phrase.weight == "symptom" and _CRASH.search(text):
            match = None  # Python's words for a program that it started
        if match and match.phrase.weight != "notice":
            # Slurm says on which host the step was, and not which failed.
            nobody = match.phrase.weight == "scheduler" and "CANCELLED" in text
            failure, spot, event = match.failure.id, self.spot, self._event(text)
            of = event.of if event and event.stage < OVER else None
            if failure == _FULL and self.on_cpu and "RESOURCE_EXHAUSTED" in text:
                failure = _REFUSED
            elif failure == _FULL and spot and spot.serving:
                failure = _SERVED
            self._add(match.phrase.weight, failure, text, (None,) if nobody else hosts, rank, of)
            return False
        if _CRASH.search(text) or (shell and shell["how"] != "Aborted"):
            self.broke = True
            illegal = "illegal_instruction" if _ILLEGAL.search(text) else "crashed"
            entry = "bus_error" if _BUS.search(text) else illegal
            self._add("crash", entry, text, hosts, rank)
        elif raised:  # a loader's exception is told once more by the rank, before the loader's own traceback
            self._add("symptom" if _CAUGHT.search(text) else "exception", None, text, hosts)
        elif code or shell or failed:
            self.exited = self.exited or (code > 0 and code not in (130, 143) and not self.forced)
            self._add("exit", None, text, hosts, rank)
        else:
            return match is None
        return False

    def _by_number(
        self, text: str, match: Recognised | None, hosts: Sequence[str | None], rank: int | None
    ) -> None:
        """Remember what the kernel says of a process by its number; and where a launcher or a shell tells of
        that one's end, say so of its host and rank, though steps were told in between."""
        if match and match.phrase.weight == "cause" and self.spot and (process := _KERNEL.search(text)):
            if len(self.kernel) < _KILLED:
                self.kernel[process[1]] = match.failure.id, text, self.spot
            return
        ended = _PID.search(text) if self.kernel else None
        if ended and (word := self.kernel.get(ended[ended.lastindex or 0])):
            failure, line, there = word
            if rank is None and any(sign.text == line and sign.host for sign in self.now.values()):
                return
            self.now = {key: sign for key, sign in self.now.items() if sign.text != line}
            here, self.spot = self.spot, there
            self._add("cause", failure, line, hosts, rank)
            self.spot = here


def _is_plain(raw: str, text: str) -> bool:
    """Return whether a line that reports no failure would not with other digits either, nor within a
    traceback."""
    if text[:1].isspace() or len(raw) >= _USUAL or is_exception(text) or _NUMBERED.search(raw):
        return False
    return not any(hint in raw for hint in _TELLING)


def _unquoted(text: str) -> str:
    """Return a line up to the text of a field that alone mentions a failure and is no word of the program's
    own, as in a configuration that is printed."""
    match = find(text) if '"' in text or "'" in text else None
    cause = match.phrase.expression.search(text) if match else None
    if match is None or cause is None or match.phrase.weight not in _MET:
        return text
    for field_ in _FIELD.finditer(text):
        inside = field_.start(2) < cause.start() and cause.end() < field_.end(2)
        speaks = _SPEAKS.match(field_[1]) and not _CALL.search(text[: field_.start()])
        if inside and not speaks:
            return text[: field_.start()]
    return text


def _goes_on(text: str, entry: Recognised) -> bool:
    """Return whether the line reports what its program caught and got over, unlike the one in the table: it
    is a warning, or of a lower level."""
    match = entry.phrase.expression.search(text)
    begin = text[: match.start()] if match else text
    below = _BELOW.search(begin)
    if below and not _ABOVE.search(begin, below.end()) and not _BELOW.search(entry.phrase.example):
        return True
    if _OVER.search(text) and not _OVER.search(entry.phrase.example):
        return True
    return bool(_WARNING.search(text)) and not _WARNING.search(entry.phrase.example)


def is_logged(heading: str) -> bool:
    """Return whether a logger reports a failure in a line, right above a traceback that it prints."""
    return bool(_ABOVE.search(heading) or _WARNED.search(heading))


def is_report(line: str) -> bool:
    """Return whether a loud line reports that something failed, and gives no figure that is called an error,
    nor the end of a process or an exception."""
    if len(line.split()) < _SENTENCE or not _REPORTED.match(line):
        return False
    if _tells_an_end(line) or is_exception(line) or _SOURCE.match(f" {line}") or _HARMLESS.search(line):
        return False
    entry = find(line)
    return entry is None or entry.phrase.weight != "symptom"


def goes_on(heading: str) -> bool:
    """Return whether a logger's line above a traceback says that the program goes on: it only warns, or says
    so."""
    return bool(_OVER.search(heading)) or not _ABOVE.search(heading)


def _before_it(text: str, entry: Recognised) -> str | None:
    """Return what precedes the words of a failure in a line; None: what the tool itself prints there, by the
    table's example."""
    expression = entry.phrase.expression
    match, example = expression.search(text), expression.search(entry.phrase.example)
    if match is None or not match.start():
        return None
    own = entry.phrase.example[: example.start()] if example else ""
    return None if own and text[: match.start()].endswith(own[-12:]) else text[: match.start()]


def _is_advice(text: str, entry: Recognised) -> bool:
    """Return whether a sentence only says what may happen, or what to do then."""
    match = entry.phrase.expression.search(text)
    begin = _before_it(text, entry) if match and match.start() else ""
    if begin is None or is_exception(text) or _EXCEPTION.search(begin):
        return False
    clause = re.split(r"[.;!] |: ", begin)[-1] if _HAPPENED.search(begin) else begin
    behind = text[match.end() :] if match else ""
    return bool(_ADVICE.search(clause)) or bool(_MAY.match(behind) and not _HAPPENED.search(begin))


def is_exception(text: str) -> bool:
    """Return whether a line is the last line of Python's traceback."""
    return bool(_EXCEPTION.match(text))


def echo_of(text: str) -> str | None:
    """Return the entry of a line that only says that another rank has failed; None: it is no such line."""
    entry = find(text)
    return entry.failure.id if entry and entry.phrase.weight == "symptom" and entry.failure.is_echo else None


def follows(text: str) -> bool:
    """Return whether a line says that the exception below it was raised because of the one above it."""
    return _CAUSED in text or _HANDLED in text


def is_loud(line: str) -> bool:
    """Return whether a line mentions an error in any words, and not as of a warning or less."""
    passing = _WARNING.search(line) or _BELOW.search(line) or _HEADINGS.match(line)
    return bool(_LOUD.search(line)) and not passing


def complains(line: str) -> bool:
    """Return whether a program says why it ends, in the words of Unix: not as Python does, not of another
    process's end, and not only of what followed from a failure elsewhere."""
    store = _STORE.match(line)
    if not (store or _COMPLAINT.match(line)) or (is_exception(line) and not store):
        return False
    if not is_loud(f"error {line}"):
        return False
    entry = find(line)
    passing = _OVER.search(line) or _HARMLESS.search(line)
    return not (passing or _tells_an_end(line) or (entry and entry.phrase.weight == "symptom"))


def _tells_an_end(line: str) -> bool:
    """Return whether a launcher or a shell tells of a process's end."""
    return any(each.search(line) for each in (_EXITS, _SHELL, _FORCED, _EXTERNAL, _TASKS))


def has_bare_exception(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the last line of Python's traceback, and not part of an aside."""
    aside = False
    for line in lines:
        if is_exception(line) and not _OVER.search(line):
            if not aside:
                return True
            aside = False
        aside = aside or bool(_ASIDE.search(line))
    return False


def outside_asides(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that belong to nothing that is printed aside, as what Python ignores at its end."""
    aside = False
    for line in lines:
        told = line[:1].isspace() or "Traceback (most recent call last)" in line or is_exception(line)
        if _ASIDE.search(line):
            aside = True
        elif not (aside and told):
            yield line
        aside = aside and (told or bool(_ASIDE.search(line))) and not is_exception(line)


def shape_of(text: str, *hosts: str | None) -> str:
    """Return a reason without its numbers and hosts: the same line in another job's log has it too."""
    for host in filter(None, hosts):
        text = text.replace(host, "")
    return re.sub(r"\d+", "", shortened(text))


def order(weight: Weight) -> int:
    """Return how little a line of this weight explains."""
    return _ORDER[weight]


def weight_of(failure: str | None) -> int:
    """Return how much a failure explains: a cause, before an exception (which has no name), before a symptom.
    """
    if failure is None:
        return _ORDER["exception"]
    entry = known_failures().get(failure)
    weights = [phrase.weight for phrase in entry.says if phrase.of == "log"] if entry else []
    return _ORDER[weights[0] if weights else "cause"]


def shortened(text: str) -> str:
    """Return a line as a reason: without blanks at its ends, and of a long one both ends, LONGEST in all."""
    line = " ".join(text.split())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[: half - 3]} ... {line[2 - half :]}"
