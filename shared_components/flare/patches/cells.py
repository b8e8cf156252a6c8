"""Names of FLARE's cells: a party's process, and its processes of jobs, with or without a relay.

A site is `hospital-a`, and behind a relay `north-relay.hospital-a`; its process of a job appends the job's id. The
relay `north-relay` belongs to the region `north`, whose node is the cell `north-relay.north`.
"""

from dataclasses import dataclass

from nvflare.fuel.f3.cellnet.fqcn import FQCN

from shared_components.flare.deployment.federation_file import RELAY

LOST_SITES = "surgfl.lost_sites"  # topic of the server's message to a region's node


@dataclass(frozen=True)
class Cell:
    """The parts of a cell's name."""

    relay: str  # empty if the party connects to the server
    party: str  # name of the party's own process, such as ``north-relay.hospital-a``
    job: str  # empty for the party's own process

    @property
    def name(self) -> str:
        """The party's name in the federation."""
        return self.party.rpartition(".")[2]

    @property
    def node(self) -> str:
        """The cell of the node of the party's region; empty without a relay."""
        return node_of(self.relay) if self.relay else ""


def read_cell(name: object) -> Cell:
    """Return the parts of a cell's name."""
    parts = str(name).split(".")
    relay = parts[0] if parts[0].endswith(RELAY) and parts[0] != RELAY else ""
    own = len(parts[:2]) if relay else 1
    return Cell(relay, ".".join(parts[:own]), ".".join(parts[own:]))


def node_of(relay: str) -> str:
    """Return the cell of a region's node, which sums its sites' updates."""
    return FQCN.join([relay, relay.removesuffix(RELAY)])


def belongs_to(name: object, party: str) -> bool:
    """Return whether a cell is a party's own process or one of its processes of jobs."""
    return str(name) == party or str(name).startswith(f"{party}.")
