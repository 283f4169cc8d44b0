"""Secrets: names of environment variables are shown, their values are not. Passwords and tokens inside other
text are masked. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.core.errors import RecipeError
from muster.core.printable import HIDDEN, scrubbed, scrubbed_data
from muster.core.recipes import parse_override

ALWAYS_SHOWN = frozenset(("NCCL_IB_DISABLE",))  # a switch; `muster plan --calibrate` reads it from job.json
OPTIONS = ("options", "ssh_options")  # of `launch`: words that may set variables
_LEAST = 6  # characters of a value that is looked for in logs: a shorter one would mask too much

_WORDS = "TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PW|PAT|KEYS?|CREDENTIALS?|AUTH|COOKIE|DSN|PRIVATE"
_SECRET = re.compile(rf"(?:^|_)(?:{_WORDS})(?:_|$)|(?:API|ACCESS|PRIVATE|SECRET|SSH)KEY", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Z][A-Z0-9_]*\b)(?P<sign>['\"]?\s?[=:]\s?)(?P<value>'[^']*'|\"[^\"]*\"|[^\s,;'\"]+)"
)
_ENV = re.compile(r"(?:[A-Za-z0-9][\w.\-]*:)?\s*env(?:\.(?P<name>.*))?", re.DOTALL)  # a bench's ENTRY: first
_LAUNCH = re.compile(rf"(?:[A-Za-z0-9][\w.\-]*:)?\s*launch(?:\.(?P<name>{'|'.join(OPTIONS)}|setup))?")
_SETS = ("-x", "--x", "-e", "--env", "-env", "-genv")  # the word after one of these is NAME=VALUE
_JOINED = re.compile(r"(?P<option>--env=|-e)(?P<variable>[A-Z_][A-Za-z0-9_]*=.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>'[^']*'|\"[^\"]*\"|(?:(?!,[A-Za-z_]\w*(?:=|,|$))[^\s'\"])*)"
)
# In a line of bash a value may have several quoted parts, and ends where a command can: at `;`, `&`, `|`.
_QUOTED = r"'[^']*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|\$?\((?:[^()]|\([^()]*\))*\)|\\."
_BASH_VARIABLE = re.compile(
    rf"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>(?:{_QUOTED}|[^\s'\"`;&|<>()\\])*)", re.DOTALL
)
_FLAG = re.compile(
    r"(?P<kept>--?(?:password|passwd|token|secret|api-?key)[= ]|\bsshpass -p ?)[^\s'\"]+", re.IGNORECASE
)
# Names of a program's own arguments: `--api-key X`, `trainer.hub_token=X`, `"password": "X"`. A tokenizer's
# `pad_token`, or a data set's `prompt_key`, is none.
_ARGUMENT = re.compile(
    r"(?:.*[_.])?(?:(?:(?:api|access|private|secret|ssh|wandb|comet|openai|hf|hub|aws|azure|account)[_.]?key)"
    r"|password|passwd|passphrase|secret|credentials?|bearer|webhook(?:_url)?"
    r"|(?:hf|hub|auth|access|api|github|gitlab|wandb|session|sas|refresh|bot|slack|bearer)_?token)"
    r"|(?:.*\.)?token",
    re.IGNORECASE,
)
# Other names that end so hold a secret where the value is no word: letters and digits, and long.
_PERHAPS = re.compile(r"(?:.*[_.])?(?:key|token|auth)", re.IGNORECASE)
_RANDOM = re.compile(r"(?=[^\d]*\d)(?=[\d_\-+=]*[A-Za-z])[\w\-+=]{20,}")
_HEADER = re.compile(
    r"(?P<kept>\b(?:[\w\-]*authorization|[\w\-]*api-key|[\w\-]*-token|cookie)\s*:\s*)(?P<value>\S.*)", re.I
)
_LOGGED_IN = re.compile(r"(?P<name>(?![^:]*\.py:)[\w.@\-]+:)(?P<password>[^/\\\s]+)")
_LOGIN = ("-u", "--user", "--proxy-user")  # of curl: NAME:PASSWORD is the word after it
_VALUE = r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\",;&|)}]+)"
_GIVEN = re.compile(rf"(?P<kept>(?<![\w.\-])[-+]*(?P<name>[A-Za-z][\w.\-]*)(?:=|['\"]\s*:\s*)){_VALUE}")
_FOLLOWED = re.compile(rf"(?P<kept>(?<!\S)--?(?P<name>[A-Za-z][\w.\-]*)\s+)(?!-){_VALUE}")
_SWITCH = re.compile(r"(?i)['\"]?(?:true|false|none|null|\d)['\"]?")
_LISTS = re.compile(r"(?P<lead>^--export=|SetEnv[=\s]+)(?P<list>.*?)(?=\s-|$)", re.IGNORECASE | re.DOTALL)


def is_secret(name: str) -> bool:
    """Return whether a variable of this name is likely to hold a secret."""
    return bool(_SECRET.search(name))


def masked(env: Mapping[str, Any], shown: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables with their values masked. `shown`: those whose values are shown (`env_show`)."""
    named = {*shown, *ALWAYS_SHOWN}
    return {
        name: scrubbed(str(value)) if name in named and value is not None else HIDDEN
        for name, value in env.items()
    }


def scrubber(env: Mapping[str, str], command: Sequence[str] = ()) -> Callable[[str], str]:
    """Return a function that masks a line of a job's logs: known tokens, SECRET_NAME=VALUE, and the values of
    those of the job's variables, and of its command's arguments, whose names are names of secrets."""
    values = {value for name, value in env.items() if is_secret(name)} | _masked_program(command)[1]
    every = sorted((re.escape(value) for value in values if len(value) >= _LEAST), key=len, reverse=True)
    own = re.compile("|".join(every)) if every else None

    def scrub(line: str) -> str:
        line = scrubbed(own.sub(HIDDEN, line) if own else line)
        return _ASSIGNED.sub(_masked_assigned, line)

    return scrub


def _masked_assigned(match: re.Match[str]) -> str:
    if not is_secret(match["name"]) or match["value"].strip("'\"") in ("", HIDDEN):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "'\"" else ""
    return f"{match['name']}{match['sign']}{quote}{HIDDEN}{quote}"


def masked_words(words: Sequence[str], shown: Iterable[str] = ()) -> list[str]:
    """Return further arguments of mpirun, srun or ssh, with the values of the variables that they set masked.
    """
    named = {*shown, *ALWAYS_SHOWN}
    made: list[str] = []
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        made.append(scrubbed(_masked_word(before, word, named)))
    return made


def masked_program(words: Sequence[str]) -> list[str]:
    """Return the words of a user's own command, with the values of arguments and variables masked whose names
    are names of secrets."""
    return _masked_program(words)[0]


def _masked_program(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words as they may be shown, and the values that were masked."""
    made: list[str] = []
    taken: set[str] = set()

    def hide(match: re.Match[str]) -> str:
        if not _is_secret_argument(match["name"], match["value"]):
            return match[0]
        return match["kept"] + hidden(match["value"])

    def assigned(match: re.Match[str]) -> str:
        shown = _masked_assigned(match)
        if shown != match[0]:
            hidden(match["value"])
        return shown

    def hidden(value: str) -> str:
        quote = value[0] if value[0] in "'\"" else ""
        taken.add(value.strip("'\""))
        return f"{quote}{HIDDEN}{quote}"

    for before, word in zip(["", *words], words, strict=False):
        flag = before.startswith("-") and "=" not in before and not word.startswith("-")
        if flag and word and _is_secret_argument(before.lstrip("-"), word):
            made.append(hidden(word))
            continue
        if before in _LOGIN and (login := _LOGGED_IN.fullmatch(word)):
            made.append(login["name"] + hidden(login["password"]))
            continue
        word = _ASSIGNED.sub(assigned, word)
        word = _FOLLOWED.sub(hide, _GIVEN.sub(hide, word))
        made.append(scrubbed(_HEADER.sub(lambda match: match["kept"] + hidden(match["value"]), word)))
    return made, taken


def _is_secret_argument(name: str, value: str) -> bool:
    name, bare = name.replace("-", "_"), value.strip("'\"")
    if _SWITCH.fullmatch(value) or bare in (HIDDEN, HIDDEN[:-1]):
        return False
    return bool(_ARGUMENT.fullmatch(name) or (_PERHAPS.fullmatch(name) and _RANDOM.fullmatch(bare)))


def masked_setup(text: str, shown: Iterable[str] = ()) -> str:
    """Return a line of bash, with the values of the variables that it sets masked."""
    hidden = _BASH_VARIABLE.sub(_hider({*shown, *ALWAYS_SHOWN}), text)
    return scrubbed(_FLAG.sub(rf"\g<kept>{HIDDEN}", hidden))


def _hider(shown: set[str]) -> Callable[[re.Match[str]], str]:
    def hide(match: re.Match[str]) -> str:
        return match[0] if match["name"] in shown else f"{match['name']}={HIDDEN}"

    return hide


def _masked_word(before: str, word: str, shown: set[str]) -> str:
    hide = _hider(shown)
    if _LISTS.search(word):
        return _LISTS.sub(lambda match: match["lead"] + _VARIABLE.sub(hide, match["list"]), word)
    name, equals, _ = word.partition("=")
    if equals and (before in _SETS or name.isidentifier()) and (before in _SETS or name.upper() == name):
        return word if name in shown else f"{name}={HIDDEN}"
    return _FLAG.sub(rf"\g<kept>{HIDDEN}", _ASSIGNED.sub(_masked_assigned, word))


def shared_section(name: str, value: Any, shown: Iterable[str]) -> Any:
    """Return a section of a recipe, such as `env` or `launch`, as it may be shown; it is not what runs."""
    if name == "env" and isinstance(value, Mapping):
        named = {*shown, *ALWAYS_SHOWN}
        return {each: what if each in named else None for each, what in value.items()}
    return _masked_launch(value, shown) if name == "launch" else scrubbed_data(value)


def shareable(recipe: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe as it may be shared, and what was removed from it. A variable that is not shown is
    null."""
    shown = {*recipe["env_show"], *ALWAYS_SHOWN}
    env = {name: value if name in shown else None for name, value in recipe["env"].items()}
    given = recipe["env"].items()
    taken: dict[str, Any] = {"env": {name: value for name, value in given if value and name not in shown}}
    launch = dict(recipe["launch"])
    for name in OPTIONS:
        launch[name] = masked_words(recipe["launch"][name], shown)
        if launch[name] != recipe["launch"][name]:
            taken[name] = recipe["launch"][name]
    if launch.get("setup"):
        launch["setup"] = masked_setup(launch["setup"], shown)
        if launch["setup"] != recipe["launch"]["setup"]:
            taken["setup"] = recipe["launch"]["setup"]
    data = {**recipe, "env": env, "launch": launch}
    if "command" in recipe:
        data["command"] = masked_program(recipe["command"])
        if data["command"] != recipe["command"]:
            taken["command"] = recipe["command"]
    return data, {name: value for name, value in taken.items() if value}


def completed(
    recipe: Mapping[str, Any], kept: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the recipe with what `shareable` removed: from `kept`, or else from the environment of the user
    who starts it. Raises RecipeError where neither has a value."""
    held = kept.get("env") or {}

    def value_of(name: str, field: str) -> str:
        value = held.get(name, environ.get(name))
        if value is None:
            raise RecipeError(
                "has no value: it was not written down, and the environment does not have it",
                where=f"{field}: {name}" if field != "env" else f"env.{name}",
                hint=f"{name}=VALUE muster ..., or export {name} first",
            )
        return str(value)

    def filled(field: str, text: str) -> str:
        hidden = re.compile(rf"(?P<name>\w+)={re.escape(HIDDEN)}")
        quote = shlex.quote if field == "setup" else str
        return hidden.sub(lambda m: f"{m['name']}={quote(value_of(m['name'], f'launch.{field}'))}", text)

    env = {name: value_of(name, "env") if value is None else value for name, value in recipe["env"].items()}
    launch = dict(recipe["launch"])
    for field in OPTIONS:
        if any(HIDDEN in word for word in launch[field]):
            launch[field] = kept.get(field) or [filled(field, word) for word in launch[field]]
    if HIDDEN in (launch.get("setup") or ""):
        launch["setup"] = kept.get("setup") or filled("setup", launch["setup"])
    made = {**recipe, "env": env, "launch": launch}
    if any(HIDDEN in word for word in recipe.get("command", ())):
        if "command" not in kept:
            raise RecipeError(
                "has arguments that were not written down, since they are secret",
                where="command",
                hint="start it anew, with the whole command",
            )
        made["command"] = kept["command"]
    return made


def masked_override(text: str, shown: Iterable[str] = ()) -> str:
    """Return a word of a command with the values of variables masked in env.NAME=VALUE, env={NAME: VALUE} and
    launch.options=[...]; of other words only known tokens are masked."""
    shown = {*shown, *ALWAYS_SHOWN}
    key, equals, raw = text.partition("=")
    variable, launch = _ENV.fullmatch(key.rstrip()), _LAUNCH.fullmatch(key.rstrip())
    if not equals or not raw.strip() or not (variable or launch):
        return scrubbed(text)
    if variable and variable["name"] is not None:
        return text if variable["name"] in shown else f"{key}={HIDDEN}"
    value = parse_override(f"x={raw}")["x"]
    if variable:
        if value in (None, HIDDEN):
            return text
        if not isinstance(value, Mapping):  # no recipe has such an env: nobody knows what is in it
            return f"{key}={HIDDEN}"
        hidden: Any = masked({str(name): each for name, each in value.items()}, shown)
    elif launch and launch["name"] == "setup":
        hidden = masked_setup(str(value), shown)
    else:
        hidden = _masked_launch(value, shown)
    if hidden == value:
        return text
    return f"{key}={json.dumps(hidden, ensure_ascii=False, default=str)}"


def masked_command(argv: Sequence[str], shown: Iterable[str] = ()) -> list[str]:
    """Return a command line of muster, with the values of the variables that its words set masked: `-e
    NAME=VALUE` and `--env=NAME=VALUE` of `muster run`, overrides of recipes, and what follows `--`."""
    named = {*shown, *ALWAYS_SHOWN}
    made: list[str] = []
    end = argv.index("--") if "--" in argv else len(argv)
    argv, program = argv[:end], argv[end:]
    for before, word in zip(["", *argv], argv, strict=False):
        joined = _JOINED.fullmatch(word)
        if joined:
            made.append(joined["option"] + _masked_word(_SETS[0], joined["variable"], named))
        elif before in _SETS:
            made.append(scrubbed(_masked_word(before, word, named)))
        else:
            made.append(masked_override(word, shown))
    return [*made, *masked_program(program)]


def _masked_launch(value: Any, shown: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: masked_setup(str(each), shown) if each and name == "setup" else _masked_launch(each, shown)
            for name, each in value.items()
        }
    if isinstance(value, list):
        words = [str(each) for each in value]
        hidden = masked_words(words, shown)
        return value if hidden == words else hidden
    return masked_words([value], shown)[0] if isinstance(value, str) else value
