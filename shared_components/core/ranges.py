"""Declare types and ranges of arguments of methods and tasks; `task.build_by_name` checks them before it builds."""

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

LARGEST, LARGEST_INT = sys.float_info.max, 2**63 - 1  # upper ends refuse infinity and ints without limit

FromZero = Annotated[float, Meta(ge=0, le=LARGEST, description="it is a number, at least 0")]
AboveZero = Annotated[float, Meta(gt=0, le=LARGEST, description="it is a number, above 0")]
Share = Annotated[float, Meta(ge=0, le=1)]
ShareAboveZero = Annotated[float, Meta(gt=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
ShareBetween = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1, le=LARGEST_INT, description="it is a whole number, at least 1")]
CountFromZero = Annotated[int, Meta(ge=0, le=LARGEST_INT, description="it is a whole number, at least 0")]
Seed = Annotated[int, Meta(ge=0, le=LARGEST_INT)]  # as torch.Generator
Mode = Literal["corrected", "as_released"]
Names = Annotated[Sequence[str], Meta(description="write a list of names, such as ['head']")]
SomeNames = Annotated[Sequence[str], Meta(min_length=1, description="write at least one name in a list: ['head']")]
