"""The base of classes that go before a Transformers trainer among the base classes of another: a trainer to
type checkers, nothing at run time, so that `super()` reaches whichever trainer comes behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer as BeforeTrainer
else:
    BeforeTrainer = object
