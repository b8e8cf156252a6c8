"""Read the server's messages at the site, before anything is done with them: the counterpart of `parse_reply`.

A site trusts its server with weights and numbers alone. Whatever arrives, :func:`read` returns a message of known form
and size, without a path and without code, or refuses it by one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shared_components.common.schema import kind_of
from shared_components.federation.message_schema import TASKS, check_request_header
from shared_components.federation.messages import Job, Message, folder_name
from shared_components.federation.runs import LATEST
from shared_components.federation.server.parse_reply import read_body
from shared_components.federation.server.update_checks import RejectedUpdate


def read(task: str, message: Message) -> Message:
    """Return a server's message, each value of the form that the site relies on.

    A message that was read before is returned as it is.

    Raises:
        ValueError: The task is unknown, a plain value is unknown, missing or of another form, or it carries an
            expression, a tensor of another kind, or numbers that are not finite; one sentence.
    """
    if task not in TASKS:
        raise ValueError(f"the server asks for {task!r:.80}; a site does {', '.join(TASKS)}")
    who = f"the server's {task} message"
    if not isinstance(message.header, Mapping):
        raise ValueError(f"{who}: its header is {kind_of(message.header)}, no dictionary")
    header = check_request_header(task, message.header, who)
    job = Job.from_json(header["job"])
    if folder_name("run", header["run"]) == LATEST:
        raise ValueError(f"{who}: its run is called {LATEST!r}, as the site's link to the newest one")
    last = job.rounds if task in ("enrol", "finish") else job.rounds - 1
    if header["round"] > last:
        raise ValueError(f"{who} is of round {header['round'] + 1} of {job.rounds}; ask who runs the server")
    try:
        pieces, groups = read_body(message)
    except RejectedUpdate as error:
        raise ValueError(f"{who}: {error}") from error
    for part in (pieces, *groups.values()):
        for name, value in part.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{who}: {name} has values that are not finite; ask who runs the server")
    return Message({**header, "job": job.to_json()}, pieces, groups)
