"""Site-side filters that check what leaves the site, independently of the executor."""

from __future__ import annotations

import torch
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from shared_components.flare import wire


class DeclaredPiecesOnly(Filter):
    """Let a result pass only if every tensor in it is a GLOBAL or MIXED piece of the job's own partition.

    The executor cuts by role; this filter builds the partition again, without weights, and checks names and
    shapes. It fails closed: on any doubt nothing is sent and the job is told so.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the result unchanged, or raise so that FLARE sends an error instead."""
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable
        message = wire.from_wire(shareable)
        if not message.tensors:
            return shareable
        allowed = declared_shapes(message.header["job"], message.header["classes"])
        for group, pieces in message.tensors.items():
            for name, value in pieces.items():
                if allowed.get(name) != tuple(value.shape):
                    raise ValueError(
                        f"{group} {name} {tuple(value.shape)} is not a declared piece; nothing was sent"
                    )
        return shareable


def declared_shapes(job: dict, classes: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all GLOBAL and MIXED pieces, from a network without memory."""
    from shared_components.bundle_config import build_network, load_bundle
    from shared_components.federation.messages import Job
    from shared_components.method import load_method
    from shared_components.partition import Role, partition_network

    parsed = Job.from_json(job)
    bundle = load_bundle(parsed.bundle, parsed.training)
    with torch.device("meta"):
        network = build_network(bundle.network, out_channels=len(classes))
    partition = partition_network(network, load_method(parsed.method, **parsed.arguments).rule)
    state = network.state_dict()
    return {n: tuple(p.view(state).shape) for n, p in partition.with_roles(Role.GLOBAL, Role.MIXED).items()}
