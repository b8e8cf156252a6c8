"""Check that a network fits a task and a method."""

from __future__ import annotations

from torch import nn

from shared_components.core.method import Method
from shared_components.core.task import Task
from shared_components.networks.protocols import require


def check_network(network: nn.Module, method: Method, task: Task) -> None:
    """Raise ValueError where a network does not take the task's clips, or is not what the method requires."""
    check_frames(network, task)
    if method.requires.network is not None:
        require(network, method.requires.network, method.name)


def check_frames(network: nn.Module, task: Task) -> None:
    """Raise ValueError where the task's samples are clips, and the network takes single frames or other clips."""
    kind, frames = type(network).__name__, task.spec.frames
    asks = f"{task.card.kind} asks for clips of {frames} frames, and {kind} takes"
    if frames > 1 and not getattr(network, "takes_clips", False):
        raise ValueError(
            f"{asks} single ones; write frames: 1 and interval: 0.0 for it in 'tasks', or choose a bundle whose "
            "network takes clips (where that is an argument of the network, network.temporal: true)"
        )
    if frames > 1 and (due := getattr(network, "frames", frames)) != frames:
        raise ValueError(f"{asks} {due}; write frames: {due} for it in 'tasks', or change the network")
