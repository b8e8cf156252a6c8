"""Check a reply against what a task, the job of the enrolment and the site's own description allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared_components.common.schema import shown
from shared_components.core.method import load_method
from shared_components.core.partition import Pieces, Role
from shared_components.core.task import choose_task
from shared_components.data.site import Site
from shared_components.federation.allowed_payload import Expected, expect
from shared_components.federation.message_schema import REPLY, check_reply_header
from shared_components.federation.messages import FLOAT32, Job, Message
from shared_components.federation.privacy.noisy_updates import check_entered, check_stripped
from shared_components.federation.secure_sums import job_section
from shared_components.federation.secure_sums.masks import sealed_bytes
from shared_components.federation.secure_sums.shares import SHARE
from shared_components.federation.server import outsider
from shared_components.federation.wire_format import check_format, pack


@dataclass(frozen=True)
class Asked:
    """A task: its name (``enrol``, ``round``, ``unmask`` or ``finish``) and its message's header.

    Its job is the one that the site enrolled with, whatever the message's is.
    """

    task: str
    header: Mapping[str, Any]

    @property
    def job(self) -> Job:
        """The job of the header."""
        return Job.from_json(self.header["job"])


def expected(job: Job, site: Site) -> Expected:
    """Build what a site's reply is compared with; ValueError where job and site do not fit."""
    bundle = job.open_bundle()
    method = load_method(job.method, **job.arguments)
    task = choose_task(bundle.tasks, site.task, classes=site.classes, who=str(site.path))
    return expect(job, method, task)


def check_reply(message: Message, asked: Asked, site: Site) -> None:
    """Refuse a reply that carries anything but what this task of this job may send from this site.

    Raises:
        ValueError: The sentence names what is not declared.
    """
    try:
        _check(message, asked, site, expected(asked.job, site))
    except ValueError as error:
        raise ValueError(f"{error}; nothing was sent") from error


def _check(message: Message, asked: Asked, site: Site, due: Expected) -> None:
    if asked.job.noise:
        check_stripped(message)
        if asked.task == "round":
            check_entered(message, site, job=asked.job.name, run=asked.header["run"], round=asked.header["round"])
    _check_header(message.header, asked, due, site)
    if asked.task == "finish":
        _check_finish(message, due, site)
        return
    if asked.task == "unmask" or (asked.task == "round" and asked.job.secure_sums):
        _check_sums(message, asked, due)
        return
    wire = asked.job.wire if asked.task == "round" else FLOAT32
    _check_tensors("piece", message.pieces, pack(due.pieces(Role.GLOBAL, Role.MIXED), wire))
    for group, pieces in message.groups.items():
        if asked.task != "round" or group not in due.method.local.extras:
            raise ValueError(f"{group} is nothing that {due.method.name} declares for {asked.task!r}")
        _check_plain_tensors(group, pieces)
        check_format(pieces, wire)
        due.method.local.extras[group](pieces, due.pieces(Role.GLOBAL))


def _check_header(header: Mapping[str, Any], asked: Asked, due: Expected, site: Site) -> None:
    check_reply_header(asked.task, header, f"the answer to {asked.task!r}")
    if held := sorted(key for key in header if REPLY[key].withheld in site.withhold):
        raise ValueError(f"{site.path} withholds {REPLY[held[0]].withheld!r}, and it says {held[0]}")
    own = {"round": asked.header["round"], "card": due.task.card.to_json(), "partition": due.partition.to_json()}
    own |= {} if due.method.local.condition_on_site else {"prepared": ""}
    odd = [key for key, value in own.items() if header.get(key, value) != value]
    odd += [job_section.KEY] * (job_section.KEY in header and not asked.job.secure_sums)
    odd += ["final"] * (header.get("final", {"site": site.name}).get("site") != site.name)
    if odd:
        raise ValueError(f"its {odd[0]} is not that of this job at this site: {shown(header[odd[0]])}")
    published = (due.method.requires.items | due.method.requires.optional_items) & set(site.publish)
    if more := sorted(set(header.get("items", {})) - published):
        raise ValueError(f"{more[0]} is no item that {site.path} publishes to {due.method.name}")


def _check_sums(message: Message, asked: Asked, due: Expected) -> None:
    """Accept masked pieces and sealed shares of a round, and the shares that open its sum; no weight as it is."""
    if message.pieces or not asked.job.secure_sums:
        raise ValueError(f"nothing of the kind is due to {asked.task!r} of this job")
    sites = asked.header[job_section.HEADER]["sites"]
    if asked.task == "unmask":
        if set(message.groups) != {job_section.OPENED}:
            raise ValueError(f"{sorted(message.groups)} is nothing that opens a sum")
        for name, value in message.groups[job_section.OPENED].items():
            rows = value.shape[0] if value.dim() == 2 and value.shape[1] == SHARE else 0
            if name not in sites or value.dtype != torch.uint8 or not 0 < rows <= asked.header["sites"]:
                raise ValueError(f"the shares of {name} are none that open a sum")
        return
    job_section.check_masked(message.groups, due.pieces(Role.GLOBAL), sites, sealed_bytes(len(sites)))


def _check_finish(message: Message, due: Expected, site: Site) -> None:
    """Accept whole models of a site that consents, and no other tensor."""
    if message.pieces or set(message.groups) - {*outsider.AT_FINISH}:
        named = sorted(message.groups) or ["pieces"]
        raise ValueError(f"{named[0]} is nothing that is sent at the finish")
    for group, model in message.groups.items():
        if group not in site.publish:
            raise ValueError(f"{site.path} does not publish {group!r}")
        _check_tensors("model", model, due.state)


def _check_tensors(what: str, pieces: Mapping[str, Tensor], declared: Pieces) -> None:
    _check_plain_tensors(what, pieces)
    for name, value in pieces.items():
        if name not in declared or declared[name].shape != value.shape:
            raise ValueError(f"{what} {name} {tuple(value.shape)} is not declared")
        if value.dtype != declared[name].dtype:
            raise ValueError(f"{what} {name} is {value.dtype}; {declared[name].dtype} is declared")


def _check_plain_tensors(what: str, pieces: Mapping[str, Any]) -> None:
    for name, value in pieces.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{what} {name} is no tensor but {type(value).__name__}")
