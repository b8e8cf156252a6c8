"""Report everything that a job lets leave a site, before anything leaves: tensors by role, extras, items, values.

Like the site's filter (`allowed_payload`), the report follows from the method, the bundle's network and the site's own
description, and from no statement of the server.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from shared_components.common.counted import counted
from shared_components.core.partition import Role
from shared_components.data.profile_items import ITEMS
from shared_components.federation.messages import FLOAT32, Job, Wire, total_bytes
from shared_components.federation.messages.schema import PUBLISHED_MODELS, REPLY, TASKS, leaves_with_noise
from shared_components.federation.messages.wire_format import pack
from shared_components.federation.secure_sums import job_section
from shared_components.federation.setup.allowed_payload import Expected
from shared_components.federation.site.noisy_updates import SAMPLES

FILE = "what-leaves.json"
SENT = (Role.GLOBAL, Role.MIXED)
STAYS = "stays at the site"
MASKED_BYTES = 8  # of a masked number, a whole number modulo 2^64; a weight has 4
WHY_PUBLISHED = {
    "model": "the whole model, for hospitals outside of the federation",
    "result": "the whole model, by itself, for whoever may download the job's result",
}


@dataclass(frozen=True)
class Weights:
    """Pieces of one role: number of tensors, numbers and bytes, and whether they leave."""

    role: str
    tensors: int
    numbers: int
    bytes: int  # in one round, if they leave
    leaves: bool


@dataclass(frozen=True)
class Leaving:
    """One part of an answer, by its name in the message."""

    task: str
    kind: str  # weights, extra, item (of `publish`) or value (plain, in the header)
    name: str
    form: str  # shape or description
    bytes: int  # of tensors; 0 for plain values, which are short
    leaves: bool | None = True  # None: depends on a site.yaml that is not known yet
    why: str = ""


@dataclass(frozen=True)
class WhatLeaves:
    """The report of one job at one site."""

    job: str
    method: str
    bundle: str
    rounds: int
    task: str
    weights: tuple[Weights, ...]
    parts: tuple[Leaving, ...]

    def bytes_of(self, task: str) -> int:
        """Return the bytes of the tensors that leave with one answer."""
        return sum(part.bytes for part in self.parts if part.task == task and part.leaves is not False)

    @property
    def bytes_in_all(self) -> int:
        """Largest number of bytes of all tensors that leave in the whole job."""
        return self.bytes_of("enrol") + self.rounds * self.bytes_of("round") + self.bytes_of("finish")

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with megabytes."""
        megabytes = {task: self.bytes_of(task) / 1e6 for task in TASKS} | {"in all": self.bytes_in_all / 1e6}
        return {**asdict(self), "megabytes": megabytes}

    def sentence(self) -> str:
        """Summarise in one line what a round sends and what stays."""
        weights = [w for w in self.weights if w.tensors]
        sent = [f"{counted(w.tensors, f'{w.role} tensor')} ({w.bytes / 1e6:.2f} MB)" for w in weights if w.leaves]
        stay = [f"{w.tensors} {w.role}" for w in weights if not w.leaves]
        extras = [part.name for part in self.parts if part.kind == "extra"]
        return (
            f"{self.job} ({self.method}): each round sends {' and '.join([*sent, *extras]) or 'no tensor'}, "
            f"{self.bytes_of('round') / 1e6:.2f} MB; {' and '.join(stay) or 'nothing'} {'stay' if stay else 'stays'}"
        )


def what_leaves(
    job: Job, expected: Expected, *, publish: Collection[str] | None = None, withhold: Collection[str] = ()
) -> WhatLeaves:
    """Return the report of a job; ``publish`` is None if there is no site.yaml yet."""
    weights = []
    for role in Role:
        pieces = pack(expected.pieces(role), job.wire if role in SENT else FLOAT32)
        numbers = sum(value.numel() for value in pieces.values())
        weights.append(Weights(role.value, len(pieces), numbers, total_bytes(pieces), role in SENT))
    parts = [*_tensors(expected, job.wire), *_items(expected, publish)]
    parts += [_value(task, name, withhold) for task in TASKS for name in _values(task, job)]
    ordered = tuple(_protected(job, part) for task in TASKS for part in parts if part.task == task)
    return WhatLeaves(
        job.name, expected.method.name, job.bundle, job.rounds, expected.task.card.kind, tuple(weights), ordered
    )


def _tensors(expected: Expected, wire: Wire) -> Iterator[Leaving]:
    """Yield the weights of the enrolment and of a round, then a round's extras."""
    method = expected.method
    asked = "each site" if method.requires.multi_task else "only the first site"
    rounded = "" if wire == FLOAT32 else f"rounded, wire: {wire}"
    for task, why, form in (
        ("enrol", f"the initial weights of all sites; {asked} is asked for them", FLOAT32),
        ("round", rounded, wire),
    ):
        for role in SENT:
            if pieces := pack(expected.pieces(role), form):
                tensors, size = counted(len(pieces), "tensor"), total_bytes(pieces)
                yield Leaving(task, "weights", f"{role.value} pieces", tensors, size, True, why)
    for group, extra in method.local.extras.items():
        shapes = extra.shapes(expected.pieces(Role.GLOBAL), expected.state)
        size = total_bytes(pack({n: torch.empty(shape, device="meta") for n, shape in shapes.items()}, wire))
        yield Leaving("round", "extra", group, _form(shapes), size, True, f"{method.name} needs it")


def _items(expected: Expected, publish: Collection[str] | None) -> Iterator[Leaving]:
    """Yield the profile items of the enrolment, and the models that a site may publish at the finish."""
    requires = expected.method.requires
    for name in sorted(requires.items | requires.optional_items):
        why = f"{expected.method.name} needs it" if name in requires.items else "the site may refuse it"
        yield _consented("enrol", name, ITEMS[name].words, 0, publish, why)
    form, size = counted(len(expected.state), "tensor"), total_bytes(expected.state)
    for name in PUBLISHED_MODELS:
        yield _consented("finish", name, form, size, publish, WHY_PUBLISHED[name])


def _consented(task: str, name: str, form: str, size: int, publish: Collection[str] | None, why: str) -> Leaving:
    if publish is None:
        return Leaving(task, "item", name, form, size, None, f"if site.yaml publishes it; {why}")
    consent = "published in site.yaml" if name in publish else f"not published in site.yaml: it {STAYS}"
    return Leaving(task, "item", name, form, size, name in publish, f"{consent}; {why}")


def _values(task: str, job: Job) -> list[str]:
    """Return the names of an answer's plain values, without the round, which the server knows."""
    if task == "unmask" and not job.secure_sums:
        return []
    names = [name for name, field in REPLY.items() if field.form and task in field.tasks]
    return [name for name in names if name != job_section.KEY or job.secure_sums]


def _value(task: str, name: str, withhold: Collection[str]) -> Leaving:
    field = REPLY[name]
    if not field.withheld:
        return Leaving(task, "value", name, field.form, 0)
    withheld = field.withheld in withhold
    why = f"withheld in site.yaml: it {STAYS}" if withheld else f"the site may withhold it: '{field.withheld}'"
    return Leaving(task, "value", name, field.form, 0, not withheld, why)


def _protected(job: Job, part: Leaving) -> Leaving:
    """Return a part as it leaves under the job's noise or secure sums."""
    update = part.kind == "weights" and part.task == "round"
    if job.secure_sums and update:
        size = part.bytes // 4 * MASKED_BYTES
        return replace(part, form=f"{part.form}, masked", bytes=size, why="the server learns only a sum of sites")
    if not job.noise or (part.kind == "weights" and not update):
        return part
    if update:
        return replace(part, why="clipped together, with noise")
    if part.name == "samples":
        return replace(part, form=f"{SAMPLES}, whatever the site has")
    if part.kind == "value" and leaves_with_noise(part.name):
        return part
    return replace(part, leaves=False, why=f"the job's noise does not cover it: it {STAYS}")


def _form(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if shapes == {"value": ()}:
        return "one number"
    if len(shapes) > 4:
        return counted(len(shapes), "tensor")
    return ", ".join(f"{name} {' x '.join(map(str, shape)) or 'one number'}" for name, shape in shapes.items())
