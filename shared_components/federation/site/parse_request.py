"""What the server sends is read here, at the site, before anything is done with it: the counterpart of `replies`.

A site trusts its server with weights and numbers alone. Whatever arrives, :func:`read` returns a message of known form
and size, without a path and without code, or refuses it by one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shared_components.data.profile_items import ITEMS, check_item
from shared_components.federation.messages import MOST_SITES, Job, Message, folder_name
from shared_components.federation.secure_sums import job_section
from shared_components.federation.server.parse_reply import kind_of, read_body
from shared_components.federation.server.update_checks import RejectedUpdate
from shared_components.federation.site.agreed_job import check_place
from shared_components.networks.bundle_config import MOST_ROUNDS

EVERY = {"job", "run", "round", "index", "number", "numbers", "sites"}
DUE = {
    "enrol": EVERY | {"send_initial"},
    "round": EVERY | {"items"},
    "unmask": EVERY | {job_section.HEADER},
    "finish": EVERY | {"items"},
}
"""What a message says in plain values; it may say all of `FORMS`."""


def read(task: str, message: Message) -> Message:
    """Return what the server asks, each value of the form that the site's rooms rely on.

    Args:
        task: ``enrol``, ``round``, ``unmask`` or ``finish``.
        message: As the transport delivered it; one that was read before is returned as it is.

    Raises:
        ValueError: It asks for something else, says more or less than it should, carries an expression or a tensor of
            another kind, or numbers that are not finite; one sentence.
    """
    if task not in DUE:
        raise ValueError(f"the server asks for {task!r:.80}; a site does {', '.join(DUE)}")
    who = f"the server's {task} message"
    header = message.header
    if not isinstance(header, Mapping):
        raise ValueError(f"{who}: its header is {kind_of(header)}, no dictionary")
    if odd := [key for key in header if key not in FORMS]:
        raise ValueError(f"{who} says {odd[0]!r:.80}, which none does")
    if missing := sorted(DUE[task] - set(header)):
        raise ValueError(f"{who} does not say {missing[0]!r}; use one version of surgfl everywhere")
    for key, value in header.items():
        if not FORMS[key](value):
            raise ValueError(f"{who}: its {key} is {_shown(value)}, which has an odd form")
    job = Job.from_json(header["job"])
    check_place(header)
    folder_name("run", header["run"])
    try:
        pieces, groups = read_body(message)
    except RejectedUpdate as error:
        raise ValueError(f"{who}: {error}") from error
    for name, value in [item for part in (pieces, *groups.values()) for item in part.items()]:
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{who}: {name} has values that are not finite; ask who runs the server")
    return Message({**header, "job": job.to_json()}, pieces, groups)


def _is_items(value: object) -> bool:
    if not isinstance(value, Mapping) or not set(value) <= set(ITEMS):
        return False
    try:
        for name, of_sites in value.items():
            if not isinstance(of_sites, list) or len(of_sites) > MOST_SITES:
                return False
            for item in of_sites:
                check_item(name, item)
    except ValueError:
        return False
    return True


def _is_pool(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_SITES and all(isinstance(name, str) for name in value)


def _shown(value: object) -> str:
    """Return a short value's text; of a long or deep one its type."""
    if isinstance(value, str):
        return repr(value[:60])
    return repr(value) if value is None or type(value) in (bool, float) else kind_of(value)


FORMS: dict[str, Callable[[Any], bool]] = {
    "job": lambda value: True,
    "run": lambda value: isinstance(value, str),
    "round": lambda value: True,
    "index": lambda value: True,
    "number": lambda value: True,
    "numbers": lambda value: True,
    "sites": lambda value: True,
    "send_initial": lambda value: isinstance(value, bool),
    "items": _is_items,
    "answered": lambda value: value is None or (type(value) is int and 0 <= value <= MOST_ROUNDS),
    "pool": _is_pool,
    job_section.HEADER: job_section.is_asked,
}
"""The form of everything that a header may say; `Job` looks at ``job``, `check_place` at the numbers."""
