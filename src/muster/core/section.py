"""Base classes of documents: frozen parts, a recipe's sections, and the types of values in those."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from muster.core.units import parse_bytes

Auto = BeforeValidator(lambda value: None if value == "auto" else value)
# 65536, or as people write it: 64KiB.
Bytes = Annotated[
    int,
    Field(ge=4),
    BeforeValidator(lambda value: parse_bytes(value) or value if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 4}, {"type": "string"}]}),
]
PositiveInt = Annotated[int, Field(ge=1)]
# One word of a batch script's #SBATCH line: nothing that ends it, quotes, or begins another option.
SlurmText = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\[(*][A-Za-z0-9_.:,|&*=+@/()\[\]-]*$")]
AutoInt = Annotated[Annotated[int, Field(ge=1)] | None, Auto]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Part(BaseModel):
    """A part of a document. Unknown keys are errors; values never change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Section(Part):
    """A part of a recipe. A number where text is expected needs no quotes: `ssh_options: [-p, 2222]`."""

    model_config = ConfigDict(populate_by_name=True, allow_inf_nan=False, coerce_numbers_to_str=True)
    # Keys of which at most one is set: when a later layer sets one, the others of earlier layers are dropped.
    exclusive: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _at_most_one(self) -> Section:
        fields = {field.alias or name: name for name, field in type(self).model_fields.items()}
        names = [name for name in self.exclusive if name in fields]
        given = [name for name in names if getattr(self, fields[name]) is not None]
        if len(given) > 1:
            raise ValueError(f"at most one of {', '.join(given)} can be given")
        return self
