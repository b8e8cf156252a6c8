"""Condition a site's network on untrained inputs, such as its description of the surgery.

A site's own model stays conditioned on that site wherever it is used. A federation's model for hospitals outside is
conditioned on the site where it is used, as on one more site; a checkpoint's header says which of both it is.
"""

from __future__ import annotations

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
from shared_components.data.profile_items import LONGEST_NAME, EncoderName
from shared_components.data.site import Site, SiteError
from shared_components.networks.checkpoints import CheckpointError, header_of

MOST_SITES = 10_000  # of a header
TOLD, ARGUMENTS, SITES = "told", "arguments", "sites"  # keys of a header
# the last bits of an encoder's vector differ from machine to machine
_NEARLY = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True)
_EQUAL = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)


def facts_of(site: Site, *, number: int, count: int) -> SiteFacts:
    """Return what a method may know of a site: the ``number``-th, from 0, of ``count``."""
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
    """Call a method's ``condition_on_site``, if it has one, on a network that holds the weights it works with.

    Args:
        method: The method of the federation.
        network: The site's, changed in place.
        partition: Of the network.
        site: With text, vectors and encoder.
        name: The federation's name of the site, which begins a refusal, its site.yaml next.
        number: The site's number, from 0.
        count: How many sites there are.
        again: The LOCAL pieces are those of an earlier round, conditioned on the site already.

    Returns:
        The name of the encoder that computed the inputs; empty where nothing compares.

    Raises:
        SiteError: The site's text, vectors or encoder cannot be used, are others than in an earlier round, or the
            method changes what is not LOCAL; one sentence.
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
        raise SiteError(
            f"{who}: {method.name} names the encoder {made_by!r:.120}; a name has at most {LONGEST_NAME} characters, "
            "all of them printable ASCII"
        )
    if changed := _changed(others, cut(state, partition, *rest), _EQUAL):
        raise SiteError(
            f"{who}: {method.name} would tell the site's text to {changed}, which is not LOCAL and would leave the site"
        )
    if _changed(own, cut(state, partition, Role.LOCAL), _NEARLY):
        raise SiteError(
            f"{who}: text, text_vectors or text_encoder are not what they were in earlier rounds; restore them to go "
            "on, or start a new run"
        )
    return made_by


def is_name(value: Any) -> bool:
    """Return whether a value has the form of an encoder's name: short and printable; empty stands for none."""
    return fits(value, EncoderName)


def _changed(before: Pieces, now: Pieces, same: partial[bool]) -> str:
    return next((name for name, value in before.items() if not same(value, now[name])), "")


# ---- models of sites that took part, and of those that did not


def notes_of_told(encoder: str) -> dict[str, str]:
    """Return the header's entry of a site's own model, by what `site_conditioning.condition_on_site` returned."""
    return {TOLD: encoder} if encoder else {}


def notes_of_untold(method: Method, arguments: Mapping[str, Any], sites: int) -> dict[str, str]:
    """Return the header's entries of a model that knows no site: what it takes to condition it on one.

    ``arguments`` are the method's, as the job has them; ``sites``, how many took part. Most methods have no entries.
    """
    if method.local.condition_on_site is None:
        return {}
    return {TOLD: "", ARGUMENTS: json.dumps(dict(arguments)), SITES: str(sites)}


def knows_no_site(notes: Mapping[str, str]) -> bool:
    """Return whether a header is of a model that is to be conditioned on the site where it is used."""
    return notes.get(TOLD) == ""


def describe_site(network: nn.Module, path: Path, site: Site) -> str:
    """Condition a network that knows no site on one that did not take part; leave any other network as it is.

    The checkpoint's header has method, arguments and number of sites. Returns the encoder's name; empty where the
    network was left as it is.

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
        between(method.name, SITES, sites, 1, MOST_SITES, whole=True)  # vectors of numbered sites are as long
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"checkpoint {path} knows no site, and its header does not say how to tell it of one ({error}); use the "
            "file that the federation wrote"
        ) from error
    return condition_on_site(method, network, partition, site, name=site.name, number=sites, count=sites + 1)
