"""Report what a job lets leave of a site, before anything does: tensors by role, extras, items, values, megabytes.

As in the site's filter (`allowed_payload`), it follows from the method, the bundle's network and the site's own
description, and from nothing that the server says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from shared_components.common.counted import counted
from shared_components.core.partition import Pieces, Role
from shared_components.data.profile_items import ITEMS
from shared_components.federation.messages import FLOAT32, Job, Wire, total_bytes
from shared_components.federation.messages.schema import (
    PUBLISHED_MODEL,
    PUBLISHED_RESULT,
    REPLY,
    TASKS,
    leaves_with_noise,
)
from shared_components.federation.messages.wire_format import pack
from shared_components.federation.secure_sums import job_section
from shared_components.federation.setup.allowed_payload import Expected
from shared_components.federation.site.noisy_updates import SAMPLES

FILE = "what-leaves.json"
SENT = (Role.GLOBAL, Role.MIXED)
STAYS = "stays at the site"
MASKED_BYTES = 8  # of a masked number, whole and modulo 2^64; of a weight: 4


@dataclass(frozen=True)
class Weights:
    """The slices of one role: how many tensors, numbers and bytes (sent ones: in a round), and whether they leave."""

    role: str
    tensors: int
    numbers: int
    bytes: int
    leaves: bool


@dataclass(frozen=True)
class Leaving:
    """One part of an answer, by its name in the message."""

    task: str
    kind: str  # weights, extra, item (of `publish`) or value (plain, of the header)
    name: str
    form: str  # its shape, or a description
    bytes: int  # of its tensors; 0 for plain values, which are short
    leaves: bool | None = True  # None: that depends on a site.yaml that is not known yet
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
        """The bytes of all tensors that leave in the whole job, at most."""
        return self.bytes_of("enrol") + self.rounds * self.bytes_of("round") + self.bytes_of("finish")

    def to_json(self) -> dict[str, Any]:
        """Return plain values, megabytes besides."""
        megabytes = {task: self.bytes_of(task) / 1e6 for task in TASKS} | {"in all": self.bytes_in_all / 1e6}
        return {**asdict(self), "megabytes": megabytes}

    def sentence(self) -> str:
        """Summarise in one line what a round sends and what stays."""
        sent = [
            f"{counted(w.tensors, f'{w.role} tensor')} ({w.bytes / 1e6:.2f} MB)"
            for w in self.weights
            if w.leaves and w.tensors
        ]
        stay = [f"{w.tensors} {w.role}" for w in self.weights if not w.leaves and w.tensors]
        extras = [part.name for part in self.parts if part.kind == "extra"]
        return (
            f"{self.job} ({self.method}): each round sends {' and '.join([*sent, *extras]) or 'no tensor'}, "
            f"{self.bytes_of('round') / 1e6:.2f} MB; {' and '.join(stay) or 'nothing'} {'stay' if stay else 'stays'}"
        )


def what_leaves(
    job: Job, expected: Expected, *, publish: Collection[str] | None = None, withhold: Collection[str] = ()
) -> WhatLeaves:
    """Return what a job lets leave of a site; ``publish`` is None where there is no site.yaml yet."""
    weights = tuple(_weights(role, pack(expected.pieces(role), job.wire if role in SENT else FLOAT32)) for role in Role)
    parts = [*_enrol(expected, publish), *_round(expected, job.wire), *_finish(expected, publish)]
    parts += [_plain(task, name, withhold) for task in TASKS for name in _values(task, job)]
    ordered = tuple(_under(job, part) for task in TASKS for part in parts if part.task == task)
    return WhatLeaves(job.name, expected.method.name, job.bundle, job.rounds, expected.task.card.kind, weights, ordered)


def _weights(role: Role, pieces: Pieces) -> Weights:
    numbers = sum(value.numel() for value in pieces.values())
    return Weights(role.value, len(pieces), numbers, total_bytes(pieces), role in SENT)


def _enrol(expected: Expected, publish: Collection[str] | None) -> Iterator[Leaving]:
    asked = "each site" if expected.method.requires.multi_task else "the first site alone"
    yield from _pieces("enrol", expected, f"what all begin from; {asked} is asked for it")
    for name in sorted(expected.method.requires.items | expected.method.requires.optional_items):
        needed = (
            f"{expected.method.name} needs it" if name in expected.method.requires.items else "the site may refuse it"
        )
        yield _consented("enrol", name, ITEMS[name].words, 0, publish, needed)


def _round(expected: Expected, wire: Wire) -> Iterator[Leaving]:
    yield from _pieces("round", expected, "" if wire == FLOAT32 else f"rounded, wire: {wire}", wire)
    for group, extra in expected.method.local.extras.items():
        shapes = extra.shapes(expected.pieces(Role.GLOBAL), expected.state)
        size = total_bytes(pack({n: torch.empty(shape, device="meta") for n, shape in shapes.items()}, wire))
        yield Leaving("round", "extra", group, _form(shapes), size, True, f"{expected.method.name} needs it")


def _finish(expected: Expected, publish: Collection[str] | None) -> Iterator[Leaving]:
    form, size = counted(len(expected.state), "tensor"), total_bytes(expected.state)
    why = "the whole model, for hospitals outside of the federation"
    yield _consented("finish", PUBLISHED_MODEL, form, size, publish, why)
    why = "the whole model, by itself, for whoever may download the job's result"
    yield _consented("finish", PUBLISHED_RESULT, form, size, publish, why)


def _pieces(task: str, expected: Expected, why: str, wire: Wire = FLOAT32) -> Iterator[Leaving]:
    for role in SENT:
        if pieces := pack(expected.pieces(role), wire):
            yield Leaving(
                task, "weights", f"{role.value} pieces", counted(len(pieces), "tensor"), total_bytes(pieces), True, why
            )


def _consented(task: str, name: str, form: str, size: int, publish: Collection[str] | None, why: str) -> Leaving:
    if publish is None:
        return Leaving(task, "item", name, form, size, None, f"if site.yaml publishes it; {why}")
    consent = "published in site.yaml" if name in publish else f"not published in site.yaml: it {STAYS}"
    return Leaving(task, "item", name, form, size, name in publish, f"{consent}; {why}")


def _values(task: str, job: Job) -> list[str]:
    """Return the plain values of an answer; the round's number is the server's own."""
    if task == "unmask" and not job.secure_sums:
        return []
    names = [name for name, field in REPLY.items() if field.form and task in field.tasks]
    return [name for name in names if name != job_section.KEY or job.secure_sums]


def _under(job: Job, part: Leaving) -> Leaving:
    """Return a part as it leaves under a job's noise or secure sums."""
    weights = part.kind == "weights" and part.task == "round"
    if job.secure_sums and weights:
        size = part.bytes // 4 * MASKED_BYTES
        return replace(part, form=f"{part.form}, masked", bytes=size, why="the server learns a sum of sites alone")
    if not job.noise or (part.kind == "weights" and not weights):
        return part
    if weights:
        return replace(part, why="clipped together, with noise")
    if part.name == "samples":
        return replace(part, form=f"{SAMPLES}, whatever the site has")
    if part.kind == "value" and leaves_with_noise(part.name):
        return part
    return replace(part, leaves=False, why=f"the job's noise does not cover it: it {STAYS}")


def _plain(task: str, name: str, withhold: Collection[str]) -> Leaving:
    field = REPLY[name]
    if not field.withheld:
        return Leaving(task, "value", name, field.form, 0)
    held = field.withheld in withhold
    why = f"withheld in site.yaml: it {STAYS}" if held else f"the site may withhold it: '{field.withheld}'"
    return Leaving(task, "value", name, field.form, 0, not held, why)


def _form(shapes: Mapping[str, tuple[int, ...]]) -> str:
    if shapes == {"value": ()}:
        return "one number"
    if len(shapes) > 4:
        return counted(len(shapes), "tensor")
    return ", ".join(f"{name} {' x '.join(map(str, shape)) or 'one number'}" for name, shape in shapes.items())
