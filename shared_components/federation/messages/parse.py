"""Parse and check messages where they enter a process; sites and server accept only tensors and plain values.

The limits are far above the needs of an honest site. They keep one site from ending the job of all.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import cast

import torch
from torch import Tensor

from shared_components.common.sanitise import is_plain
from shared_components.common.schema import kind_of, short_repr
from shared_components.core.aggregators.mean import parameter_names, squared_distance, squared_norm
from shared_components.core.partition import Pieces
from shared_components.federation.messages import Message, Place, RejectedUpdate, Reply, Request, total_bytes
from shared_components.federation.messages.job import LATEST, Job, folder_name
from shared_components.federation.messages.message import all_finite
from shared_components.federation.messages.schema import PROFILE, TASKS, check_reply_header, check_request_header
from shared_components.federation.messages.stored import StoredPieces

MOST_GROUPS = 16
MOST_TENSORS = 20_000  # in a group
MOST_DIMENSIONS = 8
MOST_BYTES = 8 * 2**30  # of all tensors in a message
LONGEST_TENSOR_NAME = 400
DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
)
"""Accepted types of tensors: neither complex nor quantised."""


def parse_reply(task: str, reply: object) -> Reply:
    """Check a site's reply to a task; RejectedUpdate names the first value that is malformed or too large.

    The header of the result has only values that `schema.REPLY` declares for the task. Its pieces and groups are
    dictionaries of dense tensors on the processor.
    """
    if not isinstance(reply, Message):
        raise RejectedUpdate(f"its answer is {kind_of(reply)}, no message of this job")
    if not isinstance(reply.header, Mapping):
        raise RejectedUpdate(f"its header is {kind_of(reply.header)}, no dictionary")
    try:
        required = PROFILE if task == "enrol" else ()
        header = check_reply_header(task, reply.header, f"its answer to {task!r}", required=required)
    except ValueError as error:
        raise RejectedUpdate(f"{error}{'; use one version of surgfl everywhere' * (task == 'enrol')}") from error
    pieces, groups = _parse_tensors(reply)
    return Reply(header, pieces, groups)


def parse_request(task: str, message: Message) -> Request:
    """Check a server's message to a site; it can carry neither a path nor code.

    ValueError: the task is unknown, a value is malformed, missing or undeclared, or a tensor is not finite.
    """
    request = parse_request_header(task, message.header)
    who = f"the server's {task} message"
    try:
        pieces, groups = _parse_tensors(message)
    except RejectedUpdate as error:
        raise ValueError(f"{who}: {error}") from error
    for part in (pieces, *groups.values()):
        for name, value in part.items():
            if not all_finite(value):
                raise ValueError(f"{who}: {name} has values that are not finite; ask who runs the server")
    return replace(request, pieces=pieces, groups=groups)


def parse_request_header(task: str, header: object) -> Request:
    """Check the plain values of a server's message, and return the request without tensors; ValueError as above."""
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


def norm_of(pieces: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of the floating-point pieces."""
    return math.sqrt(sum(squared_norm(pieces[name]) for name in parameter_names(pieces)))


def check_pieces(
    pieces: Mapping[str, Tensor],
    sent: Mapping[str, Tensor],
    *,
    largest_change: float,
    noise: float = 0.0,
    norm_sent: float | None = None,
) -> None:
    """Compare a site's pieces with the pieces it was sent; RejectedUpdate names the first that is wrong.

    Names, shapes and types must be equal, and values finite. The L2 norm of the change is limited to
    ``largest_change`` x (1 + norm sent) + ``noise``; integers, such as counts of batches, have no limit. ``norm_sent``
    is `norm_of` the pieces that were sent, if it is known. Each piece is read once.
    """
    if missing := [name for name in sent if name not in pieces]:
        raise RejectedUpdate(f"{len(missing)} of its pieces are missing, the first is {missing[0]}")
    if extra := [name for name in pieces if name not in sent]:
        raise RejectedUpdate(f"it has pieces that nobody asked for, the first is {extra[0]}")
    squares = 0.0
    for name, expected in sent.items():
        value = pieces[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            wanted = f"{expected.dtype} {tuple(expected.shape)}"
            raise RejectedUpdate(f"piece {name} is {value.dtype} {tuple(value.shape)}; it should be {wanted}")
        if value.is_floating_point():
            square = squared_distance(value, expected)
            if not math.isfinite(square) and not all_finite(value):
                raise RejectedUpdate(f"piece {name} has values that are not finite")
            squares += square
    change = math.sqrt(squares)
    limit = noise + largest_change * (1 + (norm_of(sent) if norm_sent is None else norm_sent))
    if not change <= limit:
        raise RejectedUpdate(f"it moved the weights by {change:.3g}; the job allows {limit:.3g} (largest_change)")


def _parse_tensors(message: Message) -> tuple[Mapping[str, Tensor], dict[str, Pieces]]:
    """Return the pieces and groups of a message; RejectedUpdate if they are not dense, too many or too large."""
    if not isinstance(message.groups, Mapping) or len(message.groups) > MOST_GROUPS:
        raise RejectedUpdate(f"its groups are no dictionary of at most {MOST_GROUPS}")
    pieces, groups = _check_tensors("piece", message.pieces), dict[str, Pieces]()
    for name, tensors in message.groups.items():
        if not is_plain(name):
            raise RejectedUpdate(f"it has a group named {short_repr(name)}")
        groups[name] = cast(Pieces, _check_tensors(f"tensor of {name}", tensors))  # or `StoredPieces`
    size = sum(map(total_bytes, (pieces, *groups.values())))
    if size > MOST_BYTES:
        raise RejectedUpdate(f"its tensors take {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} are read")
    return pieces, groups


def _check_tensors(what: str, tensors: object) -> Mapping[str, Tensor]:
    if not isinstance(tensors, Mapping) or len(tensors) > MOST_TENSORS:
        raise RejectedUpdate(f"its {what}s are no dictionary of at most {MOST_TENSORS}")
    for name, value in tensors.items():
        if not is_plain(name, LONGEST_TENSOR_NAME):
            raise RejectedUpdate(f"it has a {what} named {short_repr(name)}")
        if problem := _not_dense(value):
            raise RejectedUpdate(f"its {what} {name} is {problem}; a dense tensor of real numbers is expected")
    return tensors if isinstance(tensors, StoredPieces) else {n: value.detach() for n, value in tensors.items()}


def _not_dense(value: object) -> str:
    """Describe a value that is not a dense tensor of real numbers; return an empty text for a dense tensor."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        return kind_of(value)
    assert isinstance(value, Tensor)
    if value.is_nested or value.layout != torch.strided or value.is_quantized:
        return "a nested, sparse or quantised tensor"
    if value.device.type != "cpu":
        return f"a tensor on {value.device.type!r}"
    if value.dtype not in DTYPES:
        return f"of {value.dtype}"
    if value.dim() > MOST_DIMENSIONS:
        return f"of {value.dim()} dimensions"
    expanded = value.untyped_storage().nbytes() < value.numel() * value.element_size()
    return "a view that repeats its numbers" if expanded else ""
