"""What the words of a line say by themselves: an exception, a warning, advice, an aside, a complaint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from muster.failures.collectives import HINTS as COLLECTIVES
from muster.failures.events import HINTS as EVENTS
from muster.failures.launchers import HEADINGS, tells_an_end
from muster.failures.sign import MET
from muster.failures.table import Recognised, find, phrases

ONWARD = ("going on", "ontinuing", "etrying", "kipping")  # a program may go on after what it met
REASONS = tuple(
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
HINTS = (*REASONS, *ONWARD, *COLLECTIVES)
_PLAIN = ("rror", "Exception")  # hints that many lines have which tell of no failure
_TELLING = (*(hint for hint in REASONS if hint not in _PLAIN), *COLLECTIVES)
_NUMBERED = re.compile(
    r"errno|os error|\bcode\b|client error|\bper gpu\b", re.IGNORECASE
)  # what counts is a number
EXCEPTION = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|ZipFile)\b(?=: |\s*$)"
)
HANDLED = "During handling of the above exception, another exception occurred"
CAUSED = "The above exception was the direct cause of the following exception"
NOTHING_CAME = re.compile(r"(?:\w+\.)*Empty\s*$")  # what a queue raises: who waits for it says what it means
CHAINED = re.compile(f"{HANDLED}|{CAUSED}")
RAISING = re.compile(r"\s+raise \w")  # a line of a program, in a traceback
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
# What comes after these is printed and has no consequence: the traceback that follows, or the exception.
ASIDE = re.compile(
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
HAPPENED = re.compile(
    r"fail|error|abort|crash|cannot|can't|could(?: not|n't)|unable|fatal|due to|because|stopp|rais|exit|"
    r"got\b|hit\b|ran\b|run\b|died|terminat|caught|except|encounter|report|panic|kill|lost|went|caus|detect|receiv|"
    r"broke|reason|with\b|problem|after\b",
    re.IGNORECASE,
)
# The program says itself that it goes on.
GOING_ON = re.compile(
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
# A level or a mark that a tool gives to what failed.
LEVEL = re.compile(r"\bNCCL WARN\b|\bERROR\b|\bFATAL\b|\bCRITICAL\b|(?:^|\[)[EF]\d* |\b[Ee]rror: |\bNVRM: ")
_WARNED = re.compile(r"\bWARN(?:ING)?\b.*(?i:error|exception|fail|could ?n.t|could not|cannot|unable)")
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
USUAL = 1000  # characters; longer lines are not remembered


def is_plain(raw: str, text: str) -> bool:
    """Return whether a line that reports no failure would not with other digits either, nor within a
    traceback."""
    if text[:1].isspace() or len(raw) >= USUAL or is_exception(text) or _NUMBERED.search(raw):
        return False
    return not any(hint in raw for hint in _TELLING)


def unquoted(text: str) -> str:
    """Return a line up to the text of a field that alone mentions a failure and is no word of the program's
    own, as in a configuration that is printed."""
    match = find(text) if '"' in text or "'" in text else None
    cause = match.phrase.expression.search(text) if match else None
    if match is None or cause is None or match.phrase.weight not in MET:
        return text
    for field_ in _FIELD.finditer(text):
        inside = field_.start(2) < cause.start() and cause.end() < field_.end(2)
        speaks = _SPEAKS.match(field_[1]) and not _CALL.search(text[: field_.start()])
        if inside and not speaks:
            return text[: field_.start()]
    return text


def is_got_over(text: str, entry: Recognised) -> bool:
    """Return whether the line reports what its program caught and got over, unlike the one in the table: it
    is a warning, or of a lower level."""
    match = entry.phrase.expression.search(text)
    begin = text[: match.start()] if match else text
    below = _BELOW.search(begin)
    if below and not _ABOVE.search(begin, below.end()) and not _BELOW.search(entry.phrase.example):
        return True
    if GOING_ON.search(text) and not GOING_ON.search(entry.phrase.example):
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
    if tells_an_end(line) or is_exception(line) or RAISING.match(f" {line}") or _HARMLESS.search(line):
        return False
    entry = find(line)
    return entry is None or entry.phrase.weight != "symptom"


def goes_on(heading: str) -> bool:
    """Return whether a logger's line above a traceback says that the program goes on: it only warns, or says
    so."""
    return bool(GOING_ON.search(heading)) or not _ABOVE.search(heading)


def before_it(text: str, entry: Recognised) -> str | None:
    """Return what precedes the words of a failure in a line; None: what the tool itself prints there, by the
    table's example."""
    expression = entry.phrase.expression
    match, example = expression.search(text), expression.search(entry.phrase.example)
    if match is None or not match.start():
        return None
    own = entry.phrase.example[: example.start()] if example else ""
    return None if own and text[: match.start()].endswith(own[-12:]) else text[: match.start()]


def is_advice(text: str, entry: Recognised) -> bool:
    """Return whether a sentence only says what may happen, or what to do then."""
    match = entry.phrase.expression.search(text)
    begin = before_it(text, entry) if match and match.start() else ""
    if begin is None or is_exception(text) or EXCEPTION.search(begin):
        return False
    clause = re.split(r"[.;!] |: ", begin)[-1] if HAPPENED.search(begin) else begin
    behind = text[match.end() :] if match else ""
    return bool(_ADVICE.search(clause)) or bool(_MAY.match(behind) and not HAPPENED.search(begin))


def is_exception(text: str) -> bool:
    """Return whether a line is the last line of Python's traceback."""
    return bool(EXCEPTION.match(text))


def echo_of(text: str) -> str | None:
    """Return the entry of a line that only says that another rank has failed; None: it is no such line."""
    entry = find(text)
    return entry.failure.id if entry and entry.phrase.weight == "symptom" and entry.failure.is_echo else None


def follows(text: str) -> bool:
    """Return whether a line says that the exception below it was raised because of the one above it."""
    return CAUSED in text or HANDLED in text


def is_loud(line: str) -> bool:
    """Return whether a line mentions an error in any words, and not as of a warning or less."""
    passing = _WARNING.search(line) or _BELOW.search(line) or HEADINGS.match(line)
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
    passing = GOING_ON.search(line) or _HARMLESS.search(line)
    return not (passing or tells_an_end(line) or (entry and entry.phrase.weight == "symptom"))


def has_bare_exception(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the last line of Python's traceback, and not part of an aside."""
    aside = False
    for line in lines:
        if is_exception(line) and not GOING_ON.search(line):
            if not aside:
                return True
            aside = False
        aside = aside or bool(ASIDE.search(line))
    return False


def outside_asides(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that belong to nothing that is printed aside, as what Python ignores at its end."""
    aside = False
    for line in lines:
        inside = line[:1].isspace() or "Traceback (most recent call last)" in line or is_exception(line)
        if ASIDE.search(line):
            aside = True
        elif not (aside and inside):
            yield line
        aside = aside and (inside or bool(ASIDE.search(line))) and not is_exception(line)
