"""Condition a site's network on untrained inputs, such as its description of the surgery.

A site's own model stays conditioned on that site wherever it is used. A model for held-out hospitals is conditioned on
the site where it is used, as one more site. The header of a checkpoint distinguishes both kinds of model.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared_components.common.arguments import between
from shared_components.common.schema import fits
from shared_components.core.method import Method, SiteFacts, load_method
from shared_components.core.partition import Partition, Pieces, Role, cut, partition_network
from shared_components.data.profile_items import EncoderName
from shared_components.data.site import Site, SiteError
from shared_components.networks.checkpoints import CheckpointError, header_of

MOST_SITES = 10_000  # maximum number of sites in a header
TOLD, ARGUMENTS, SITES = "told", "arguments", "sites"  # keys of a header
# the last bits of an encoder's vector differ between machines
_NEARLY = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)
_EQUAL = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)


def facts_of(site: Site, *, number: int, count: int) -> SiteFacts:
    """Return the facts about a site for a method; its index is ``number``, out of ``count`` sites."""
    own = (site.text_vectors, site.text_encoder)
    return SiteFacts(site.text, number, count, *own, dataset=site.dataset, task=site.task, classes=site.classes)


def condition_on_site(
    method: Method,
    network: nn.Module,
    partition: Partition,
    site: Site,
    *,
    name: str,
    number: int,
    count: int,
    again: bool = False,
) -> str:
    """Call a method's ``condition_on_site``, if it has one, on a site's network with loaded weights.

    ``name`` is the site's name in the federation, ``number`` its index out of ``count`` sites. With ``again``, the
    LOCAL pieces are from an earlier round and already conditioned on the site. Returns the name of the inputs' encoder;
    empty if it must not be compared. Raises SiteError if the site's text, vectors or encoder cannot be used or have
    changed since an earlier round, or the method changes pieces that are not LOCAL.
    """
    if method.local.condition_on_site is None:
        return ""
    facts = facts_of(site, number=number, count=count)
    who, state = f"site {name}, {site.path}", network.state_dict()
    rest = set(Role) - {Role.LOCAL}
    others = cut(state, partition, *rest)
    own = cut(state, partition, Role.LOCAL) if again else {}
    try:
        made_by = method.local.condition_on_site(network, facts)
    except ValueError as error:
        raise SiteError(f"{who}: {error}") from error
    if not is_name(made_by):
        raise SiteError(f"{who}: {method.name} names the encoder {made_by!r:.120}; use a short text in ASCII")
    if changed := _changed(others, cut(state, partition, *rest), _EQUAL):
        raise SiteError(f"{who}: {method.name} writes the site's text into {changed}, which is not LOCAL")
    if _changed(own, cut(state, partition, Role.LOCAL), _NEARLY):
        raise SiteError(f"{who}: text, text_vectors or text_encoder have changed since earlier rounds; restore them")
    return made_by


def is_name(value: Any) -> bool:
    """Return whether a value is a valid name of an encoder: short and printable; empty means none."""
    return fits(value, EncoderName)


def _changed(before: Pieces, now: Pieces, same: partial[bool]) -> str:
    return next((name for name, value in before.items() if not same(value, now[name])), "")


def conditioned_header(encoder: str) -> dict[str, str]:
    """Return the header's entry for a site's own model, from the result of `condition_on_site`."""
    return {TOLD: encoder} if encoder else {}


def unconditioned_header(method: Method, arguments: Mapping[str, Any], sites: int) -> dict[str, str]:
    """Return the header's entries for conditioning a model for held-out sites later; none for most methods."""
    if method.local.condition_on_site is None:
        return {}
    return {TOLD: "", ARGUMENTS: json.dumps(dict(arguments)), SITES: str(sites)}


def needs_site(notes: Mapping[str, str]) -> bool:
    """Return whether a header is for a model that must be conditioned on the site where it is used."""
    return notes.get(TOLD) == ""


def describe_site(network: nn.Module, path: Path, site: Site) -> str:
    """Condition a model for held-out sites on a site, by method, arguments and number of sites in its header.

    Returns the name of the encoder, or "" if the network needs no site. Raises SiteError if the site's text, vectors or
    encoder cannot be used, and CheckpointError if the header is incomplete or names an unknown method.
    """
    notes = header_of(path)
    if not needs_site(notes):
        return ""
    try:
        method = load_method(notes["method"], **json.loads(notes[ARGUMENTS]))
        partition, sites = partition_network(network, method.partition), int(notes[SITES])
        between(method.name, SITES, sites, 1, MOST_SITES, whole=True)  # the length of numbered sites' vectors
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"checkpoint {path} needs a site, but its header lacks the settings to condition it ({error}); use the "
            "file that the federation wrote"
        ) from error
    return condition_on_site(method, network, partition, site, name=site.name, number=sites, count=sites + 1)
