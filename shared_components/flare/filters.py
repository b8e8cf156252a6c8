"""Site-side filters that check what leaves the site, independently of the executor."""

from __future__ import annotations

import torch
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

from shared_components.bundle_config import build_network, load_bundle
from shared_components.federation.messages import Job
from shared_components.flare import wire
from shared_components.method import load_method
from shared_components.partition import Pieces, Role, partition_network


class DeclaredPiecesOnly(Filter):
    """Let a result pass only if every tensor in it is declared by the job's own method.

    That is a GLOBAL or MIXED piece of its partition, or an extra that the method's own check accepts. The
    executor cuts by role; this filter builds the partition again, without weights, and checks names and
    shapes. It fails closed: on any doubt nothing is sent and the job is told so.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the result unchanged, or raise so that FLARE sends an error instead."""
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable
        message = wire.from_wire(shareable)
        if not message.tensors:
            return shareable
        job = Job.from_json(message.header["job"])
        method = load_method(job.method, **job.arguments)
        declared = declared_pieces(job, message.header["classes"])
        shared = {name: value for name, (value, role) in declared.items() if role is Role.GLOBAL}
        for group, pieces in message.tensors.items():
            if group == "pieces":
                _check_pieces(pieces, {name: value for name, (value, _) in declared.items()})
            elif group in method.extras:
                method.extras[group](pieces, shared)
            else:
                raise ValueError(f"{group} is nothing that {method.name} declares; nothing was sent")
        return shareable


def _check_pieces(pieces: Pieces, declared: Pieces) -> None:
    for name, value in pieces.items():
        if name not in declared or declared[name].shape != value.shape:
            raise ValueError(f"pieces {name} {tuple(value.shape)} is not a declared piece; nothing was sent")


def declared_pieces(job: Job, classes: list[str]) -> dict[str, tuple[Tensor, Role]]:
    """Return all GLOBAL and MIXED pieces of a job by name, as tensors of a network without memory."""
    bundle = load_bundle(job.bundle, job.training)
    with torch.device("meta"):
        network = build_network(bundle.network, out_channels=len(classes))
    partition = partition_network(network, load_method(job.method, **job.arguments).rule)
    state = network.state_dict()
    declared = partition.with_roles(Role.GLOBAL, Role.MIXED)
    return {name: (piece.view(state), piece.role) for name, piece in declared.items()}
