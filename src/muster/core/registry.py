"""Plug-ins: every module or folder of a package, and entry points of third parties. Entry points add plug-ins
and never replace one. An error in a third party's is reported with its package, file and line; a verb that
can do without it warns (PluginWarning) and goes on. Answers are checked against the base class's types."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import multiprocessing
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from muster.core.errors import BrokenPluginError, MusterError, PluginWarning, UsageError
from muster.core.near import did_you_mean

T = TypeVar("T")
_HELD = "_muster_held"

ENGINES = "muster.worker.engines"
WORKLOADS = "muster.worker.workloads"
# Entry-point group -> the package of Muster's own plug-ins of that kind; others have the group's name.
PACKAGES = {
    "muster.checks": "muster.checks.families",
    "muster.launchers": "muster.fleet.launchers",
    "muster.readers": "muster.readers",
    ENGINES: "muster.engines",
    WORKLOADS: "muster.workloads",
}
FOLDERS = (ENGINES, WORKLOADS)  # whose plug-ins are folders: what the control side asks, what ranks run
# (group, part) -> what the module must have; any one of a tuple.
CONTRACTS: Mapping[tuple[str, str | None], tuple[str | tuple[str, ...], ...]] = {
    ("muster.checks", None): ("CHECKS",),
    ("muster.launchers", None): ("ONE_MACHINE", "DIALS", "requests", "remote"),
    ("muster.readers", None): ("HINTS", "Reader"),
    (ENGINES, "runtime"): ("RUNTIME",),
    (WORKLOADS, "train"): (("build", "measure"),),
}


class Offer(NamedTuple):
    """An entry point: the plug-in's name, its module, and the distribution that offers it."""

    name: str
    module: str
    package: str


@cache
def own_plugins(group: str) -> Mapping[str, str]:
    """Return module paths of Muster's own plug-ins of `group` (such as muster.launchers) by name, without
    importing them: modules of its package, or folders, whose name does not start with an underscore and is
    not `base`."""
    package = PACKAGES.get(group, group)
    root = importlib.import_module(package)
    return {
        info.name: f"{package}.{info.name}"
        for info in pkgutil.iter_modules(root.__path__)
        if (info.ispkg or group not in FOLDERS) and not info.name.startswith("_") and info.name != "base"
    }


def plugin_names(group: str) -> dict[str, str]:
    """Return the same with those of third parties: entry points of the group, whose value is a module or
    folder. Warns of those whose names are taken."""
    names = dict(own_plugins(group))
    for offer in _offers(group, tuple(sys.path)):
        if names.setdefault(offer.name, offer.module) != offer.module:
            held = "Muster's own" if offer.name in own_plugins(group) else f"the one in {names[offer.name]}"
            warn(f"{_called(group, offer.name)} of the package {offer.package} has the name of {held}")
    return names


def package_of(group: str, name: str) -> str | None:
    """Return the distribution that offers a plug-in; None: it is Muster's own, or does not exist."""
    key = name.replace("-", "_")
    offers = () if key in own_plugins(group) else _offers(group, tuple(sys.path))
    return next((offer.package or None for offer in offers if offer.name == key), None)


def warn(text: str) -> None:
    """Warn once that a plug-in, or a part of it, is left out. A process of a pool stays silent: the notes on
    what it reads say the same."""
    if multiprocessing.parent_process() is None:
        _warn_once(text)


@cache
def _warn_once(text: str) -> None:
    warnings.warn(f"{text}: it is left out", PluginWarning, stacklevel=1)


@cache
def _offers(group: str, path: tuple[str, ...]) -> tuple[Offer, ...]:
    """Return the entry points of every installed distribution. That takes time: once for each state of
    sys.path."""
    return tuple(
        Offer(point.name.replace("-", "_"), point.value, point.dist.name if point.dist else "")
        for point in entry_points(group=group)
    )


def load_plugin(group: str, name: str, part: str | None = None) -> ModuleType:
    """Return the plug-in's module; of one that is a folder, its module `part`. `-` and `_` are the same in a
    name. Raises UsageError with near names, and BrokenPluginError for a third party's that cannot be
    imported."""
    inner = load_part(group, name, part) if part else None
    path = find_plugin(group, name)
    with guarded(group, name), redirect_stdout(sys.stderr):  # where --json prints, a plug-in does not
        module = inner or importlib.import_module(path)
        _check_contract(group, name, part, module)
        return module


def _check_contract(group: str, name: str, part: str | None, module: ModuleType) -> None:
    """Raise BrokenPluginError where a module lacks what Muster calls."""
    for wanted in CONTRACTS.get((group, part), ()):
        if not any(hasattr(module, each) for each in ([wanted] if isinstance(wanted, str) else wanted)):
            lacking = wanted if isinstance(wanted, str) else " or ".join(wanted)
            raise broken(group, name, f"it has no {lacking}", module.__file__)


def load_part(group: str, name: str, part: str) -> ModuleType | None:
    """Return the module `part` of a plug-in that is a folder; None: it has no such part, or is one module,
    which is not imported. Raises as `load_plugin`."""
    path = find_plugin(group, name)
    with guarded(group, name), redirect_stdout(sys.stderr):
        about = importlib.util.find_spec(path)
        if about is None:
            raise ModuleNotFoundError(f"No module named {path!r}")
        if about.submodule_search_locations is None:
            return None
        inside = f"{path}.{part}"  # looked for without importing the folder, which may be for ranks alone
        there = PathFinder.find_spec(inside, about.submodule_search_locations)
        return importlib.import_module(inside) if there else None


def declared(group: str, name: str, attribute: str, kind: type[T]) -> type[T]:
    """Return the class derived from `kind` that a plug-in's spec.py calls `attribute`; `kind` itself where it
    has no spec.py. Raises as `load_plugin`."""
    spec = load_part(group, name, "spec")
    kind_of_plugin = getattr(spec, attribute, None) if spec else kind
    if isinstance(kind_of_plugin, type) and issubclass(kind_of_plugin, kind):
        return kind_of_plugin
    lacking = f"its spec.py has no {attribute} that is derived from {kind.__name__}"
    raise broken(group, name, lacking, spec.__file__ if spec else None)


@contextmanager
def guarded(group: str, name: str, doing: str = "cannot be loaded") -> Iterator[None]:
    """Turn what a third party's plug-in raises inside into one BrokenPluginError. A user's errors
    (MusterError) pass."""
    try:
        yield
    except MusterError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit of a plug-in does not end Muster
        if name.replace("-", "_") in own_plugins(group):
            raise
        raise _broken_by(error, group, name, doing) from error


def broken(group: str, name: str, what: str, place: str | None = None) -> BrokenPluginError:
    """Return the error for a plug-in that does not keep its contract. `place`: FILE or FILE:LINE."""
    package = package_of(group, name)
    origins = [f"package {package}" if package else "", place or ""]
    origin = ", ".join(part for part in origins if part)
    return BrokenPluginError(
        f"{what} ({origin})" if origin else what,
        where=_called(group, name),
        hint="the package that offers it is broken, or lacks what it needs",
        package=package,
        place=place,
    )


def blamed(error: BaseException) -> BrokenPluginError | None:
    """Return the error for the third party's plug-in in whose file an error arose, wherever it was called;
    None: it arose in none."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    for group in PACKAGES:
        for offer in _offers(group, tuple(sys.path)):
            if offer.name not in own_plugins(group) and any(_within(file, offer.module) for file in files):
                return _broken_by(error, group, offer.name, "failed")
    return None


def _broken_by(error: BaseException, group: str, name: str, doing: str) -> BrokenPluginError:
    """Return the error with the last line of the plug-in's own that the exception passed through."""
    module = plugin_names(group)[name.replace("-", "_")]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if _within(frame.filename, module)]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}:{error.lineno}")
    if not lines and module in sys.modules:  # the call itself does not fit
        lines = [sys.modules[module].__file__ or ""]
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    return broken(group, name, f"{doing}: {type(error).__name__}: {reason}", lines[-1] if lines else None)


def _within(file: str, module: str) -> bool:
    """Return whether a file is the module's own, or of the package that contains it."""
    about = None
    with suppress(ImportError, ValueError, AttributeError):
        about = importlib.util.find_spec(module.partition(".")[0])
    places = (about.submodule_search_locations or [about.origin or ""]) if about else []
    return any(place and (file == place or Path(place) in Path(file).parents) for place in places)


def _called(group: str, name: str) -> str:
    return f"{_kind(group)} {name}"


def _kind(group: str) -> str:
    """Return the name of one plug-in of a group: workload, engine."""
    return group.rpartition(".")[2].removesuffix("s")


def find_plugin(group: str, name: str) -> str:
    """Return the plug-in's module path. Raises UsageError with near names."""
    key = name.replace("-", "_")
    names = own_plugins(group)
    names = names if key in names else plugin_names(group)
    if key not in names:
        choices = [choices.replace("_", "-") for choices in names]
        raise UsageError(
            f"unknown {_kind(group)} {name!r}",
            hint=did_you_mean(name, choices) or f"known: {', '.join(sorted(choices))}",
        )
    return names[key]


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that are installed here, by name."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def held_to(group: str, name: str, kind: type[T], base: type) -> type[T]:
    """Return a third party's class, whose every method of `base` is guarded and returns the type that the
    base declares, or raises BrokenPluginError. Muster's own class is returned as it is."""
    if package_of(group, name) is None:
        return kind
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "muster" or issubclass(base, each):
            continue
        for attribute, given in list(vars(each).items()):
            asked = _function(inspect.getattr_static(base, attribute, None))
            answers = _function(given)
            if asked and answers and not attribute.startswith("_") and not hasattr(answers, _HELD):
                held = _held(group, name, answers, _promised(asked))
                bound = isinstance(given, property | classmethod | staticmethod)
                setattr(each, attribute, type(given)(held) if bound else held)
    return kind


def held_module(group: str, name: str, module: ModuleType, kinds: Mapping[str, Any]) -> ModuleType:
    """Return a third party's module, whose functions are guarded in the same way. `kinds`: function -> its
    return type."""
    for attribute, kind in kinds.items():
        setattr(module, attribute, held_function(group, name, getattr(module, attribute), kind))
    return module


def held_function(group: str, name: str, function: Callable[..., T], kind: Any) -> Callable[..., T]:
    """Return a third party's function, guarded and checked to return `kind`. Raises BrokenPluginError where
    it is no function; Muster's own is returned as it is."""
    if package_of(group, name) is None:
        return function
    if not inspect.isfunction(function):
        raise broken(group, name, f"{function!r} is not a function")
    return function if hasattr(function, _HELD) else _held(group, name, function, kind)


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type, the elements of a list or tuple included. A type that
    cannot be checked fits."""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inside)
    if origin is Literal:
        return value in inside
    if origin is NoneType:
        return value is None
    if origin is Any or not isinstance(origin, type):  # in Python 3.11 Any is a class
        return True
    if issubclass(origin, Iterator):
        return isinstance(value, Iterable) and not isinstance(value, str)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if issubclass(origin, Sequence) and origin is not str:
        several = isinstance(value, Sequence) and not isinstance(value, str)
        alike = len(inside) == 1 or inside[1:] == (...,)
        return several and (not alike or all(fits(each, inside[0]) for each in value))
    return isinstance(value, (int, float) if origin is float else origin)


def _function(given: Any) -> Callable[..., Any] | None:
    """Return the function of a method, class method or property; None: it is neither."""
    inner = given.fget if isinstance(given, property) else getattr(given, "__func__", given)
    return inner if inspect.isfunction(inner) else None


def _promised(asked: Callable[..., Any]) -> Any:
    """Return the type that a function declares to return; None: none that can be checked."""
    try:
        return get_type_hints(asked).get("return")
    except NameError:  # a name that only type checkers import
        return None


def _held(group: str, name: str, answers: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    code = answers.__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"

    @functools.wraps(answers)
    def answer(*given: Any, **named: Any) -> Any:
        with guarded(group, name, f"{answers.__name__} failed"):
            value = answers(*given, **named)
        if kind not in (None, NoneType) and not fits(value, kind):
            words = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
            what = f"{answers.__name__} answers {type(value).__name__}, and has to answer {words}"
            raise broken(group, name, what, place)
        return value

    setattr(answer, _HELD, True)
    return answer
