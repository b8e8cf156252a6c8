"""Check a reply against the task, the job of the enrolment and the site's own description."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shared_components.common.schema import short_repr
from shared_components.core.method import load_method
from shared_components.core.partition import Pieces, Role
from shared_components.core.task import choose_task
from shared_components.data.site import Site
from shared_components.federation.messages import FLOAT32, Job, Message, Request
from shared_components.federation.messages.schema import PUBLISHED_MODELS, REPLY, check_reply_header
from shared_components.federation.messages.wire_format import check_format, pack
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.masks import SHARE, sealed_bytes
from shared_components.federation.setup.allowed_payload import Expected, expect
from shared_components.federation.site.noisy_updates import check_entered, check_stripped


def expected_payload(job: Job, site: Site) -> Expected:
    """Return the permitted content of a site's replies; ValueError if the job and the site do not match."""
    bundle = job.open_bundle()
    method = load_method(job.method, **job.arguments)
    return expect(job, method, choose_task(bundle.tasks, site.task, classes=site.classes, who=str(site.path)))


def check_reply(message: Message, request: Request, site: Site) -> None:
    """Refuse a reply with anything that this task of this job may not send from this site.

    The request contains the job of the site's enrolment, whatever the server's message contains. ValueError names the
    undeclared part.
    """
    try:
        _check(message, request, site, expected_payload(request.job, site))
    except ValueError as error:
        raise ValueError(f"{error}; nothing was sent") from error


def _check(message: Message, request: Request, site: Site, expected: Expected) -> None:
    if request.job.noise:
        check_stripped(message)
        if request.task == "round":
            check_entered(message, site, job=request.job.name, run=request.run, round=request.round)
    _check_header(message.header, request, expected, site)
    if request.task == "finish":
        _check_finish(message, expected, site)
        return
    if request.task == "unmask" or (request.task == "round" and request.job.secure_sums):
        _check_sums(message, request, expected)
        return
    wire = request.job.wire if request.task == "round" else FLOAT32
    _check_tensors("piece", message.pieces, pack(expected.pieces(Role.GLOBAL, Role.MIXED), wire))
    for group, pieces in message.groups.items():
        if request.task != "round" or group not in expected.method.local.extras:
            raise ValueError(f"{expected.method.name} does not declare tensor group {group} for task {request.task!r}")
        _check_plain_tensors(group, pieces)
        check_format(pieces, wire)
        expected.method.local.extras[group](pieces, expected.pieces(Role.GLOBAL))


def _check_header(header: Mapping[str, Any], request: Request, expected: Expected, site: Site) -> None:
    check_reply_header(request.task, header, f"the answer to {request.task!r}")
    if withheld := sorted(key for key in header if REPLY[key].withheld in site.withhold):
        key = withheld[0]
        raise ValueError(f"{site.path} withholds {REPLY[key].withheld!r}, but the reply contains {key}")
    values = {"round": request.round, "card": expected.task.card.to_json(), "partition": expected.partition.to_json()}
    values |= {} if expected.method.local.condition_on_site else {"prepared": ""}
    wrong = [key for key, value in values.items() if header.get(key, value) != value]
    wrong += [job_section.KEY] * (job_section.KEY in header and not request.job.secure_sums)
    wrong += ["final"] * (header.get("final", {"site": site.name}).get("site") != site.name)
    if wrong:
        raise ValueError(f"its {wrong[0]} does not belong to this job at this site: {short_repr(header[wrong[0]])}")
    published = (expected.method.requires.items | expected.method.requires.optional_items) & set(site.publish)
    if more := sorted(set(header.get("items", {})) - published):
        raise ValueError(f"{site.path} does not publish item {more[0]} to {expected.method.name}")


def _check_sums(message: Message, request: Request, expected: Expected) -> None:
    """Accept the masked pieces and sealed shares of a round, or the shares that open its sum; no plain weights."""
    if message.pieces or not request.job.secure_sums:
        raise ValueError(f"task {request.task!r} of this job permits no such tensors")
    sites = request.sums["sites"]
    if request.task == "round":
        job_section.check_masked(message.groups, expected.pieces(Role.GLOBAL), sites, sealed_bytes(len(sites)))
        return
    if set(message.groups) != {job_section.OPENED}:
        raise ValueError(f"tensor groups {sorted(message.groups)} do not open a sum")
    for name, value in message.groups[job_section.OPENED].items():
        rows = value.shape[0] if value.dim() == 2 and value.shape[1] == SHARE else 0
        if name not in sites or value.dtype != torch.uint8 or not 0 < rows <= request.place.sites:
            raise ValueError(f"the shares of {name} do not open a sum")


def _check_finish(message: Message, expected: Expected, site: Site) -> None:
    if message.pieces or set(message.groups) - {*PUBLISHED_MODELS}:
        names = sorted(message.groups) or ["pieces"]
        raise ValueError(f"task 'finish' does not permit {names[0]}")
    for group, model in message.groups.items():
        if group not in site.publish:
            raise ValueError(f"{site.path} does not publish {group!r}")
        _check_tensors("model", model, expected.state)


def _check_tensors(kind: str, pieces: Mapping[str, Tensor], declared: Pieces) -> None:
    _check_plain_tensors(kind, pieces)
    for name, value in pieces.items():
        if name not in declared or declared[name].shape != value.shape:
            raise ValueError(f"{kind} {name} {tuple(value.shape)} is not declared")
        if value.dtype != declared[name].dtype:
            raise ValueError(f"{kind} {name} is {value.dtype}; {declared[name].dtype} is declared")


def _check_plain_tensors(kind: str, pieces: Mapping[str, Any]) -> None:
    for name, value in pieces.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{kind} {name} is no tensor but {type(value).__name__}")
