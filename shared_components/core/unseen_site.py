"""What a model's header says of the text that its network was told, and how a model that knows no site is told of one.

A site's own model knows the site, and keeps what it knows wherever it is used. A federation's model for hospitals
outside does not: it is told, as that of one more site, of the site where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.core.method import Method, load_method
from shared_components.core.partition import partition_network
from shared_components.core.site_conditioning import condition_on_site
from shared_components.data.site import Site
from shared_components.networks.checkpoints import CheckpointError, header_of

TOLD, ARGUMENTS, SITES = "told", "arguments", "sites"  # keys of a header


def notes_of_told(encoder: str) -> dict[str, str]:
    """Return what the header of a site's own model says.

    Args:
        encoder: What `site_conditioning.condition_on_site` returned; empty: the network was told nothing.
    """
    return {TOLD: encoder} if encoder else {}


def notes_of_untold(method: Method, arguments: Mapping[str, Any], sites: int) -> dict[str, str]:
    """Return what the header of a model that knows no site says, and what telling it takes.

    Args:
        method: The federation's; one that tells networks nothing has nothing to say.
        arguments: The method's, as the job says them.
        sites: How many took part.
    """
    if method.local.condition_on_site is None:
        return {}
    return {TOLD: "", ARGUMENTS: json.dumps(dict(arguments)), SITES: str(sites)}


def knows_no_site(notes: Mapping[str, str]) -> bool:
    """Say whether a header is of a model that is to be told of the site where it is used."""
    return notes.get(TOLD) == ""


def describe_site(network: nn.Module, path: Path, site: Site) -> str:
    """Tell a network that knows no site of a site that did not take part; leave any other as it is.

    Args:
        network: With the weights of the checkpoint.
        path: The checkpoint, whose header says how its sites were told.
        site: Where it is used.

    Returns:
        The name of the encoder that made what it was told; empty where it was told nothing.

    Raises:
        SiteError: The site's text, vectors or encoder cannot be used.
        CheckpointError: The header names no method that is here.
    """
    notes = header_of(path)
    if not knows_no_site(notes):
        return ""
    try:
        method = load_method(notes["method"], **json.loads(notes[ARGUMENTS]))
        partition, sites = partition_network(network, method.partition), int(notes[SITES])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"checkpoint {path} knows no site, and its header does not say how to tell it of one ({error}); use the "
            "file that the federation wrote"
        ) from error
    return condition_on_site(method, network, partition, site, name=site.name, number=sites, count=sites + 1)
