"""Parse the server's message where it enters a site's process: the counterpart of `parse_reply`.

Sites accept only tensors and plain values from the server. Whatever arrives, `parse_request` returns a request of known
form and size, without a path and without code, or refuses it by one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch

from shared_components.common.schema import kind_of
from shared_components.federation.messages.job import LATEST, Job, folder_name
from shared_components.federation.messages.message import Message, Place, RejectedUpdate, Request
from shared_components.federation.messages.parse_reply import parse_tensors
from shared_components.federation.messages.schema import TASKS, check_request_header


def parse_request(task: str, message: Message) -> Request:
    """Check a server's message to a site.

    Raises:
        ValueError: The task is unknown, a plain value is unknown, missing or of another form, or it carries an
            expression, a tensor of another kind, or numbers that are not finite; one sentence.
    """
    request = parse_request_header(task, message.header)
    who = f"the server's {task} message"
    try:
        pieces, groups = parse_tensors(message)
    except RejectedUpdate as error:
        raise ValueError(f"{who}: {error}") from error
    for part in (pieces, *groups.values()):
        for name, value in part.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{who}: {name} has values that are not finite; ask who runs the server")
    return replace(request, pieces=pieces, groups=groups)


def parse_request_header(task: str, header: object) -> Request:
    """Check the plain values of a server's message, and return the request without its tensors; errors as above."""
    if task not in TASKS:
        raise ValueError(f"the server asks for {task!r:.80}; a site does {', '.join(TASKS)}")
    who = f"the server's {task} message"
    if not isinstance(header, Mapping):
        raise ValueError(f"{who}: its header is {kind_of(header)}, no dictionary")
    values = check_request_header(task, header, who)
    job = Job.from_json(values.pop("job"))
    if folder_name("run", values["run"]) == LATEST:
        raise ValueError(f"{who}: its run is called {LATEST!r}, as the site's link to the newest one")
    last = job.rounds if task in ("enrol", "finish") else job.rounds - 1
    if values["round"] > last:
        raise ValueError(f"{who} is of round {values['round'] + 1} of {job.rounds}; ask who runs the server")
    place = Place(**{field.name: values.pop(field.name) for field in fields(Place)})
    return Request(task, job, place=place, **values)
