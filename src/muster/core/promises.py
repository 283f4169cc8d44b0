"""What a third party's workload or engine answers, held against what its base promises."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from muster.core.registry import broken, guarded, package_of

T = TypeVar("T")
_HELD = "_muster_held"


def held_to(group: str, name: str, kind: type[T], base: type) -> type[T]:
    """A third party's class whose every answer to a question of `base` is guarded, and of the type that the
    question promises, or raises BrokenPluginError. Muster's own class as it is."""
    if package_of(group, name) is None:
        return kind
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "muster" or issubclass(base, each):
            continue
        for attribute, given in list(vars(each).items()):
            asked = _function(inspect.getattr_static(base, attribute, None))
            answers = _function(given)
            if asked and answers and not attribute.startswith("_") and not hasattr(answers, _HELD):
                setattr(each, attribute, _as(given, _held(group, name, answers, _promised(asked))))
    return kind


def held_module(group: str, name: str, module: ModuleType, kinds: Mapping[str, Any]) -> ModuleType:
    """A third party's module, whose functions are guarded in the same way. `kinds`: function -> what it
    answers."""
    for attribute, kind in kinds.items():
        setattr(module, attribute, held_function(group, name, getattr(module, attribute), kind))
    return module


def held_function(group: str, name: str, function: Callable[..., T], kind: Any) -> Callable[..., T]:
    """A third party's function, guarded and held to answer `kind`. Raises BrokenPluginError where it is none;
    Muster's own as it is."""
    if package_of(group, name) is None:
        return function
    if not inspect.isfunction(function):
        raise broken(group, name, f"{function!r} is not a function")
    return function if hasattr(function, _HELD) else _held(group, name, function, kind)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, the elements of a list or tuple included. What cannot be told
    fits."""
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
    """The function of a method, class method or property; None: it is another thing."""
    inner = given.fget if isinstance(given, property) else getattr(given, "__func__", given)
    return inner if inspect.isfunction(inner) else None


def _as(given: Any, function: Callable[..., Any]) -> Any:
    """The function as what `given` is."""
    if isinstance(given, property | classmethod | staticmethod):
        return type(given)(function)
    return function


def _promised(asked: Callable[..., Any]) -> Any:
    """What a function says that it answers; None: nothing that can be told."""
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
