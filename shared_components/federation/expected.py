"""What a job makes of a site's task: the method, and the network's tensors without memory, divided into pieces."""

from __future__ import annotations

from dataclasses import dataclass

from shared_components.bundle_config import weightless
from shared_components.federation.messages import Job
from shared_components.method import Method
from shared_components.partition import Partition, Pieces, Role, partition_network
from shared_components.parts import freeze
from shared_components.task import Task


@dataclass(frozen=True)
class Expected:
    """What a job makes of a site: its task, and the network's state as tensors without memory, divided."""

    method: Method
    task: Task
    state: Pieces
    partition: Partition

    def pieces(self, *roles: Role) -> Pieces:
        """Return the pieces of these roles by name."""
        return {name: piece.view(self.state) for name, piece in self.partition.with_roles(*roles).items()}


def expect(job: Job, method: Method, task: Task) -> Expected:
    """Build what replies of sites with this task are compared with.

    Raises:
        ValueError: The job names something that does not exist or does not fit.
    """
    bundle = job.open_bundle()
    network = weightless(bundle.network, out_channels=task.channels)
    freeze(network, bundle.training.fixed)
    return Expected(method, task, network.state_dict(), partition_network(network, method.rule))
