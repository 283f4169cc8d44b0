"""What results are made of: frozen parts that know all their fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(extra="forbid", frozen=True)
