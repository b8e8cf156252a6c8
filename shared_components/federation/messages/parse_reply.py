"""Parse a site's reply where it enters the server's process, into plain values and tensors of known form and size.

Whatever arrives, `parse_reply` returns a reply that can be used as it is, or refuses it by one sentence. The limits
are far above what an honest site needs; they keep one site from ending everybody's job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from shared_components.common.sanitise import is_plain
from shared_components.common.schema import kind_of, short_repr
from shared_components.core.partition import Pieces
from shared_components.federation.messages.message import Message, RejectedUpdate, Reply
from shared_components.federation.messages.schema import PROFILE, check_reply_header
from shared_components.federation.messages.stored import StoredPieces

MOST_GROUPS = 16
MOST_TENSORS = 20_000  # of a group
MOST_DIMENSIONS = 8
MOST_BYTES = 8 * 2**30  # of all tensors of a reply
LONGEST_TENSOR_NAME = 400
DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
)
"""Of tensors: no complex and no quantised ones."""


def parse_reply(task: str, reply: object) -> Reply:
    """Check a site's reply to a task where it enters the server's process.

    Returns:
        A reply whose header has no values but those that `schema.REPLY` declares for the task, and whose
        pieces and groups are dictionaries of dense tensors on the processor.

    Raises:
        RejectedUpdate: Something in it is of another form, or too large; the sentence names it.
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
    pieces, groups = parse_tensors(reply)
    return Reply(header, pieces, groups if task == "finish" else {name: dict(group) for name, group in groups.items()})


def parse_tensors(reply: Message) -> tuple[Mapping[str, Tensor], dict[str, Pieces]]:
    """Return the pieces and groups of any message; RejectedUpdate if they are not dense, or too many or too large."""
    if not isinstance(reply.groups, Mapping) or len(reply.groups) > MOST_GROUPS:
        raise RejectedUpdate(f"its groups are no dictionary of at most {MOST_GROUPS}")
    pieces, groups = _check_tensors("piece", reply.pieces), dict[str, Pieces]()
    for name, tensors in reply.groups.items():
        if not is_plain(name):
            raise RejectedUpdate(f"it has a group named {short_repr(name)}")
        groups[name] = cast(Pieces, _check_tensors(f"tensor of {name}", tensors))  # or `StoredPieces`
    size = sum(v.numel() * v.element_size() for part in (pieces, *groups.values()) for v in part.values())
    if size > MOST_BYTES:
        raise RejectedUpdate(f"its tensors take {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} are read")
    return pieces, groups


def _check_tensors(what: str, tensors: object) -> Mapping[str, Tensor]:
    if not isinstance(tensors, Mapping) or len(tensors) > MOST_TENSORS:
        raise RejectedUpdate(f"its {what}s are no dictionary of at most {MOST_TENSORS}")
    for name, value in tensors.items():
        if not is_plain(name, LONGEST_TENSOR_NAME):
            raise RejectedUpdate(f"it has a {what} named {short_repr(name)}")
        if odd := _why_odd(value):
            raise RejectedUpdate(f"its {what} {name} is {odd}; a dense tensor of real numbers is expected")
    return tensors if isinstance(tensors, StoredPieces) else {n: value.detach() for n, value in tensors.items()}


def _why_odd(value: object) -> str:
    """Say what a value is that is no dense tensor of real numbers; nothing where it is one."""
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
