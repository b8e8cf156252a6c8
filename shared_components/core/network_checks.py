"""Whether a network is what a task and a method ask for."""

from __future__ import annotations

from torch import nn

from shared_components.core.method import Method
from shared_components.core.task import Task
from shared_components.networks.protocols import require


def check_network(network: nn.Module, method: Method, task: Task) -> None:
    """Refuse a network that has not what the task or the method asks of it.

    Raises:
        ValueError: It takes no clips, or longer or shorter ones, or is not what the method requires; one sentence.
    """
    check_frames(network, task)
    if method.requires.network is not None:
        require(network, method.requires.network, method.name)


def check_frames(network: nn.Module, task: Task) -> None:
    """Refuse a network of single frames where the task asks for clips.

    Raises:
        ValueError: One sentence.
    """
    kind, frames = type(network).__name__, task.spec.frames
    asks = f"{task.card.kind} asks for clips of {frames} frames, and {kind} takes"
    if frames > 1 and not getattr(network, "takes_clips", False):
        raise ValueError(
            f"{asks} single ones; write frames: 1 and interval: 0.0 for it in 'tasks', or choose a bundle whose "
            "network takes clips (where that is an argument of the network, network.temporal: true)"
        )
    if frames > 1 and (due := getattr(network, "frames", frames)) != frames:
        raise ValueError(f"{asks} {due}; write frames: {due} for it in 'tasks', or change the network")
