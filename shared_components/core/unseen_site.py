"""Condition a federation's model for hospitals outside on the site where it is used, as one more site.

A site's own model was conditioned on that site, and stays so wherever it is used; a header says which of both it is.
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
    """Return the header's entry of a site's own model, by what `site_conditioning.condition_on_site` returned."""
    return {TOLD: encoder} if encoder else {}


def notes_of_untold(method: Method, arguments: Mapping[str, Any], sites: int) -> dict[str, str]:
    """Return the header's entries of a model that knows no site: what it takes to condition it on one.

    Args:
        method: The federation's; one that conditions no network has no entries.
        arguments: The method's, as the job has them.
        sites: How many took part.
    """
    if method.local.condition_on_site is None:
        return {}
    return {TOLD: "", ARGUMENTS: json.dumps(dict(arguments)), SITES: str(sites)}


def knows_no_site(notes: Mapping[str, str]) -> bool:
    """Return whether a header is of a model that is to be conditioned on the site where it is used."""
    return notes.get(TOLD) == ""


def describe_site(network: nn.Module, path: Path, site: Site) -> str:
    """Condition a network that knows no site on one that did not take part; leave any other network as it is.

    Args:
        network: With the weights of the checkpoint.
        path: The checkpoint, whose header has method, arguments and number of sites.
        site: Where the network is used.

    Returns:
        The encoder's name; empty where the network was left as it is.

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
