"""Site-side filters that check what leaves the site, independently of the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from shared_components.bundle_config import build_network
from shared_components.data.sites import Site
from shared_components.federation import outsider
from shared_components.federation.locate import find_site
from shared_components.federation.messages import Job, Message
from shared_components.flare import wire
from shared_components.flare.places import is_simulator, local_folder, runs_folder
from shared_components.method import Method, load_method
from shared_components.partition import Pieces, Role, partition_network
from shared_components.parts import freeze
from shared_components.task import Task, choose_task

HEADER = {
    "enrol": {"samples", "card", "items", "partition", "fixed"},
    "round": {"samples", "loss", "metrics"},
    "finish": {"metrics", "final"},
}
"""What a reply may say in plain values, beside `COMMON`."""
COMMON = {"round", "seconds", "memory_mb"}


class DeclaredPiecesOnly(Filter):
    """Let a result pass only if everything in it is what this task of this job may send from this site.

    That is: GLOBAL and MIXED pieces of the method's partition, extras that the method's own check accepts, at the
    finish the whole model of a site that consents, profile items that the site publishes, and the few plain values
    of `HEADER`. What may leave is worked out from what the server sent and from the site's own site.yaml, and never
    from the reply that is checked: the filter notes the task when FLARE hands it to the executor. It fails closed: on
    any doubt nothing is sent and the job is told so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: tuple[str, dict[str, Any]] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note the name and header of the task that is about to be executed."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            data = fl_ctx.get_prop(FLContextKey.TASK_DATA)
            self._asked = (fl_ctx.get_prop(FLContextKey.TASK_NAME), wire.from_wire(data).header)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the result unchanged, or raise so that FLARE sends an error instead."""
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable
        message = wire.from_wire(shareable)
        if self._asked is None:
            raise ValueError("the filter has not seen the task that this answers; nothing was sent")
        task, header = self._asked
        self._asked = None
        job = Job.from_json(header["job"])
        name = fl_ctx.get_identity_name()
        site = find_site(
            name,
            local=local_folder(fl_ctx),
            scenes=runs_folder(fl_ctx) / "scenes" if is_simulator(fl_ctx) else None,
            job=job,
            index=header["index"],
        )
        check_reply(message, task=task, job=job, site=site)
        return shareable


def check_reply(message: Message, *, task: str, job: Job, site: Site) -> None:
    """Refuse a reply that carries anything but what this task of this job may send from this site.

    Args:
        message: The reply.
        task: What the server asked: ``enrol``, ``round`` or ``finish``.
        job: The server's.
        site: The site's own description.

    Raises:
        ValueError: The sentence names what is not declared.
    """
    method = load_method(job.method, **job.arguments)
    _check_header(message.header, task, method, site)
    if message.empty:
        return
    learnt = task_at(job, site)
    declared = declared_pieces(job, learnt)
    if task == "finish":
        whole = whole_model(job, learnt) if outsider.GROUP in site.publish else {}
        _check_groups_at_finish(message, whole)
        return
    _check_pieces("piece", message.pieces, {name: value for name, (value, _) in declared.items()})
    shared = {name: value for name, (value, role) in declared.items() if role is Role.GLOBAL}
    for group, pieces in message.groups.items():
        if task != "round" or group not in method.extras:
            raise ValueError(f"{group} is nothing that {method.name} declares; nothing was sent")
        method.extras[group](pieces, shared)


def task_at(job: Job, site: Site) -> Task:
    """Return what a site learns in a job."""
    bundle = job.open_bundle()
    return choose_task(bundle.tasks, site.task, classes=site.classes, who=str(site.path))


def declared_pieces(job: Job, task: Task) -> dict[str, tuple[Tensor, Role]]:
    """Return all GLOBAL and MIXED pieces of a job by name, as tensors of a network without memory."""
    network = _weightless(job, task)
    partition = partition_network(network, load_method(job.method, **job.arguments).rule)
    state = network.state_dict()
    declared = partition.with_roles(Role.GLOBAL, Role.MIXED)
    return {name: (piece.view(state), piece.role) for name, piece in declared.items()}


def whole_model(job: Job, task: Task) -> Pieces:
    """Return a network's state as tensors without memory."""
    return _weightless(job, task).state_dict()


def _weightless(job: Job, task: Task) -> torch.nn.Module:
    bundle = job.open_bundle()
    with torch.device("meta"):
        network = build_network(bundle.network, out_channels=task.channels)
    freeze(network, bundle.training.fixed)
    return network


def _check_header(header: Mapping[str, Any], task: str, method: Method, site: Site) -> None:
    if odd := sorted(set(header) - HEADER.get(task, set()) - COMMON):
        raise ValueError(f"{odd[0]} is nothing that an answer to {task!r} says; nothing was sent")
    published = (method.shares | method.may_share) & set(site.publish)
    if odd := sorted(set(header.get("items", {})) - published):
        raise ValueError(f"{odd[0]} is no item that {site.path} publishes to {method.name}; nothing was sent")


def _check_groups_at_finish(message: Message, whole: Pieces) -> None:
    if message.pieces or set(message.groups) - {outsider.GROUP}:
        named = sorted(message.groups) or ["pieces"]
        raise ValueError(f"{named[0]} is nothing that is due at the finish; nothing was sent")
    if not whole:
        raise ValueError("the site does not publish 'model' in site.yaml; nothing was sent")
    _check_pieces("model", message.groups[outsider.GROUP], whole)


def _check_pieces(what: str, pieces: Pieces, declared: Pieces) -> None:
    for name, value in pieces.items():
        if name not in declared or declared[name].shape != value.shape:
            raise ValueError(f"{what} {name} {tuple(value.shape)} is not declared; nothing was sent")
