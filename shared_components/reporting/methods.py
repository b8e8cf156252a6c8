"""Build the table of methods for docs/reference/methods.md and `surgfl methods`."""

import functools
from collections.abc import Callable

from torch import nn

from shared_components.core.bundle import load_bundle
from shared_components.core.method import Method, load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.networks.bundle_config import bundle_for, weightless
from shared_components.reporting.tables import Table, as_markdown

MARKS = "<!-- methods: `surgfl methods --write docs/reference/methods.md` -->", "<!-- end of methods -->"
_HEAD = ("Method", "Partition", "Objective", "Aggregator", "Paper", "Sent by a site", "Secure sums")


def methods_markdown() -> str:
    """Tabulate all methods with their default arguments, in alphabetical order, as Markdown without a title.

    The column of sent data stays open if a method's network needs a package that is not installed.
    """
    network = functools.cache(_network)  # most methods use the same network
    rows = tuple(_row(load_method(name), network) for name in method_names())
    table = Table("Methods", _HEAD, rows, labels=len(_HEAD))
    return "\n".join(line[:-2] for line in as_markdown(table).splitlines()[2:])  # rows need no last bar


def _row(method: Method, network: Callable[[str], nn.Module]) -> tuple[str, ...]:
    about = method.about
    name = f"[{about.label}](../../nvflare_jobs/{method.name}/README.md)"
    texts = (about.partition, about.objective, about.aggregator, about.paper)
    try:
        update = leaves(method, network)
    except ValueError as error:  # its network's package is not there
        update = f"not known: {error}"
    return (name, *texts, update, about.secure_sums.partition(":")[0])


def _network(bundle: str) -> nn.Module:
    return weightless(load_bundle(bundle).network, out_channels=4)


def leaves(method: Method, network: Callable[[str], nn.Module] = _network) -> str:
    """List the content of a round's update, with sizes in MB for the method's bundle with four classes."""
    whole = network(bundle_for(method.name))
    state, partition = whole.state_dict(), partition_network(whole, method.partition)
    sizes = {role: 0 for role in Role}
    for piece in partition:
        view = piece.view(state)
        sizes[piece.role] += view.numel() * view.element_size()
    sent = [f"{sizes[r] / 1e6:.1f} MB {r.value.upper()}" for r in (Role.GLOBAL, Role.MIXED) if sizes[r]]
    sent += [f"`{group}`" for group in method.local.extras]
    once = [f"once its {item}" for item in sorted(method.requires.items)]
    return ", ".join([*sent, *once]) or "no weights"
