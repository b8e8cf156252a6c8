"""What a site sends is read here, and nowhere else: into plain values and tensors of known form and size.

Whatever arrives, :func:`read` returns a message that the rooms above may use as it stands, or refuses it by one
sentence. The limits are far above what an honest site needs; they keep one site from ending everybody's job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shared_components.common.sanitise import is_plain, one_line
from shared_components.core.partition import Partition, Pieces
from shared_components.core.site_conditioning import is_name
from shared_components.data.profile_items import ITEMS
from shared_components.federation.messages import Message
from shared_components.federation.secure_sums.job_section import KEY, is_said
from shared_components.federation.server.enrolment import is_start
from shared_components.federation.server.update_checks import NOTED, RejectedUpdate, is_scores

HEADER: dict[str, set[str]] = {
    "enrol": {"samples", "card", "items", "partition", "fixed", "prepared", "start", KEY},
    "round": {"samples", "loss", "metrics"},
    "unmask": set(),
    "finish": {"metrics", "final"},
}
"""What a reply may say in plain values, beside `COMMON`."""
COMMON = {"round", "seconds", "memory_mb"}

MOST_GROUPS = 16
MOST_TENSORS = 20_000  # of a group
MOST_DIMENSIONS = 8
MOST_BYTES = 8 * 2**30  # of all tensors of a reply
MOST_PIECES = 50_000  # of a partition
MOST_NAMES = 1_000  # classes, and kinds of input
MOST_FRAMES = 10_000  # of a clip
MOST_SAMPLES = 10**9
LONGEST_TENSOR_NAME = 400
KINDS = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
)
"""Of numbers in a tensor: no complex and no quantised ones."""


def read(task: str, reply: object) -> Message:
    """Return what a site answered to a task, each value of the form that the record and the server rely on.

    Args:
        task: ``enrol``, ``round``, ``unmask`` or ``finish``.
        reply: As the transport delivered it; a message that was read before is returned as it is.

    Returns:
        A message whose header has no key but those of `HEADER` and `COMMON`, each well-formed, and whose pieces
        and groups are dictionaries of dense tensors on the processor.

    Raises:
        RejectedUpdate: Something in it is of another form, or too large; the sentence names it.
    """
    if not isinstance(reply, Message):
        raise RejectedUpdate(f"its answer is {kind_of(reply)}, no message of this job")
    return Message(_read_header(task, reply.header), *read_body(reply))


def read_body(reply: Message) -> tuple[Pieces, dict[str, Pieces]]:
    """Return the tensors of a message, be it a site's or the server's: dense, on the processor, few enough.

    Raises:
        RejectedUpdate: As :func:`read`.
    """
    if not isinstance(reply.groups, Mapping) or len(reply.groups) > MOST_GROUPS:
        raise RejectedUpdate(f"its groups are no dictionary of at most {MOST_GROUPS}")
    pieces, groups = _read_tensors("piece", reply.pieces), {}
    for name, tensors in reply.groups.items():
        if not is_plain(name):
            raise RejectedUpdate(f"it has a group named {one_line(_brief(name), 80)}")
        groups[name] = _read_tensors(f"tensor of {name}", tensors)
    size = sum(v.numel() * v.element_size() for part in (pieces, *groups.values()) for v in part.values())
    if size > MOST_BYTES:
        raise RejectedUpdate(f"its tensors take {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} are read")
    return pieces, groups


def _read_header(task: str, header: object) -> dict[str, Any]:
    if not isinstance(header, Mapping):
        raise RejectedUpdate(f"its header is {kind_of(header)}, no dictionary")
    known = HEADER[task] | COMMON
    if odd := [key for key in header if not isinstance(key, str) or key not in known]:
        raise RejectedUpdate(f"it says {one_line(_brief(odd[0]), 80)}, which no answer to {task!r} does")
    for key, value in header.items():
        if not FORMS[key](value):
            hint = "; use one version of surgfl everywhere" if task == "enrol" else ""
            raise RejectedUpdate(f"its {key} has an odd form: {one_line(_brief(value), 80)}{hint}")
    _check_items(header.get("items", {}))
    return dict(header)


def _read_tensors(what: str, tensors: object) -> Pieces:
    if not isinstance(tensors, Mapping) or len(tensors) > MOST_TENSORS:
        raise RejectedUpdate(f"its {what}s are no dictionary of at most {MOST_TENSORS}")
    for name, value in tensors.items():
        if not is_plain(name, LONGEST_TENSOR_NAME):
            raise RejectedUpdate(f"it has a {what} named {one_line(_brief(name), 80)}")
        if odd := _oddness(value):
            raise RejectedUpdate(f"its {what} {name} is {odd}; a dense tensor of real numbers is due")
    return {name: value.detach() for name, value in tensors.items()}


def _oddness(value: object) -> str:
    """Say what a value is that is no dense tensor of real numbers; nothing where it is one."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        return kind_of(value)
    assert isinstance(value, Tensor)
    if value.is_nested or value.layout != torch.strided or value.is_quantized:
        return "a nested, sparse or quantised tensor"
    if value.device.type != "cpu":
        return f"a tensor on {value.device.type!r}"
    if value.dtype not in KINDS:
        return f"of {value.dtype}"
    if value.dim() > MOST_DIMENSIONS:
        return f"of {value.dim()} dimensions"
    expanded = value.untyped_storage().nbytes() < value.numel() * value.element_size()
    return "a view that repeats its numbers" if expanded else ""


def _is_card(value: object) -> bool:
    if not isinstance(value, Mapping) or set(value) != {"kind", "outputs", "inputs", "frames"}:
        return False
    lists = all(isinstance(value[key], list) and len(value[key]) <= MOST_NAMES for key in ("outputs", "inputs"))
    frames = type(value["frames"]) is int and 0 < value["frames"] <= MOST_FRAMES
    return lists and frames and all(map(is_plain, [value["kind"], *value["outputs"], *value["inputs"]]))


def _is_partition(value: object) -> bool:
    if not isinstance(value, list) or len(value) > MOST_PIECES or not all(map(_is_piece, value)):
        return False
    try:
        return len({piece.name for piece in Partition.from_json(value)}) == len(value)
    except (KeyError, ValueError):
        return False


def _is_piece(value: object) -> bool:
    if not isinstance(value, dict) or not set(value) <= _PIECE.keys() or not {"tensor", "role"} <= set(value):
        return False
    return all(_PIECE[key](item) for key, item in value.items())


def _is_row(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value <= MOST_SAMPLES)


def _is_items(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) <= len(ITEMS)


def _check_items(items: Mapping[str, Any]) -> None:
    for name, item in items.items():
        if name not in ITEMS:
            raise RejectedUpdate(f"there is no profile item {one_line(_brief(name), 80)}")
        if item is not None and not ITEMS[name].well_formed(item):
            found = one_line(_brief(item), 80)
            raise RejectedUpdate(f"profile item {name!r} should be {ITEMS[name].words}, and is {found}")


def _is_final(value: object) -> bool:
    """Accept a site, a split and scores."""
    if not isinstance(value, Mapping):
        return False
    plain = all(is_plain(value[key]) for key in ("site", "split") if key in value)
    return plain and is_scores({key: item for key, item in value.items() if key not in ("site", "split")})


def kind_of(value: object) -> str:
    """Say of what type a value is, without writing any of it."""
    return "None" if value is None else f"a value of type {type(value).__name__[:80]}"


def _brief(value: object) -> str:
    """Return the beginning of a value's text, without writing all of a large or deep one."""
    if isinstance(value, str):
        return repr(value[:200])
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**80 else "a whole number of over 80 digits"
    return repr(value) if isinstance(value, (list, dict)) and _small(value) else kind_of(value)


def _small(value: Any, depth: int = 4) -> bool:
    """Say whether plain values are few, short and shallow enough to be written out."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return depth > 0 and len(value) <= 20 and all(_small(item, depth - 1) for item in value)
    if isinstance(value, int):
        return abs(value) < 10**80
    return value is None or isinstance(value, float) or (isinstance(value, str) and len(value) <= 200)


_PIECE: dict[str, Callable[[Any], bool]] = {
    "tensor": lambda value: is_plain(value, LONGEST_TENSOR_NAME),
    "role": lambda value: isinstance(value, str),
    "start": _is_row,
    "stop": _is_row,
    "layer": lambda value: value == "" or is_plain(value, LONGEST_TENSOR_NAME),
}

FORMS: dict[str, Callable[[Any], bool]] = {
    **NOTED,
    "round": lambda value: type(value) is int and 0 <= value < 10**9,
    "samples": lambda value: type(value) is int and 0 < value <= MOST_SAMPLES,
    "card": _is_card,
    "partition": _is_partition,
    "fixed": lambda value: isinstance(value, str) and bool(re.fullmatch(r"[0-9a-f]{0,64}", value)),
    "prepared": is_name,
    "start": is_start,
    "items": _is_items,
    "final": _is_final,
    KEY: is_said,
}
"""The form of everything that a header may say."""
