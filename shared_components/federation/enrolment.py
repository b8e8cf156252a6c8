"""What sites say of themselves at enrolment, and whether they fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from shared_components.bundle_config import STARTS
from shared_components.card import Card
from shared_components.data.profile_items import check_item
from shared_components.federation.expected import expect
from shared_components.federation.messages import FederationError, Job, Message
from shared_components.method import Method, Models, Profile
from shared_components.partition import Partition, Pieces, Role
from shared_components.preparation import is_name
from shared_components.start import said
from shared_components.task import make_task

LARGEST_WEIGHT = 1e6  # of a network before its first round; buffers of running variances included
LARGEST_RATIO = 10_000  # of a site's samples to the median of the others'


def profile_of(site: str, header: Mapping[str, Any]) -> Profile:
    """Read a site's profile from a reply's header or a saved state.

    Raises:
        FederationError: It is malformed.
    """
    samples, fixed, prepared = header.get("samples"), header.get("fixed", ""), header.get("prepared", "")
    items, start = header.get("items", {}), header.get("start", {"start": "random", "sha256": ""})
    if type(samples) is not int or samples < 1:
        raise FederationError(
            f"{site} enrols with {samples!r} training samples; a whole number from 1 on is due"
        )
    odd = not isinstance(items, Mapping) or not isinstance(fixed, str)
    if odd or not is_name(prepared) or not is_start(start):
        raise FederationError(f"{site} enrols with a malformed profile; use one version of surgfl everywhere")
    try:
        card = Card.from_json(header.get("card") or {})
        for name, value in items.items():
            check_item(name, value)
    except ValueError as error:
        raise FederationError(f"{site}: {error}") from error
    return Profile(site, samples, card, dict(items), fixed, prepared, dict(start))


@dataclass(frozen=True)
class Enrolment:
    """What a site enrolled with, checked by itself; ``pieces`` are empty where it was not asked for weights."""

    profile: Profile
    partition: Partition
    pieces: Pieces


def enrolment_of(site: str, reply: Message, job: Job, method: Method, *, asked: bool) -> Enrolment:
    """Read a site's answer to `enrol` and check it against what the job makes of its task.

    Args:
        site: Its name.
        reply: As `replies.read` returned it.
        job: The job.
        method: Its method.
        asked: Whether the site was asked for its weights.

    Raises:
        FederationError: It is malformed, of no task that the job has, keeps what the method needs to itself, or its
            weights are not what a network of this job can begin from.
    """
    profile = profile_of(site, reply.header)
    pieces = Partition.from_json(partition_of(site, reply.header))
    if refusal := wrong_kind(method, profile.card):
        raise FederationError(f"{site}: {refusal}")
    if kept_back := sorted(method.shares - set(profile.items)):
        raise FederationError(f"{site} enrols without {kept_back[0]!r}, which {method.name} needs")
    bundle, card = job.open_bundle(), profile.card
    try:
        if card.kind not in bundle.tasks:
            raise ValueError(
                f"the network of {bundle.name} learns {', '.join(bundle.tasks)}, and no {card.kind!r}"
            )
        due = expect(job, method, make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs))
    except ValueError as error:
        raise FederationError(f"{site} enrols with a task that does not fit the job: {error}") from error
    if asked:
        _check_first_weights(site, reply.pieces, due.pieces(Role.GLOBAL, Role.MIXED))
    elif reply.pieces:
        raise FederationError(f"{site} enrols with weights that nobody asked for")
    if reply.groups:
        raise FederationError(f"{site} enrols with {min(reply.groups)!r}, which nobody asked for")
    return Enrolment(profile, pieces, reply.pieces)


def _check_first_weights(site: str, pieces: Pieces, due: Pieces) -> None:
    """Refuse weights that a network of this job cannot begin from.

    Raises:
        FederationError: The sentence names the piece: missing or undeclared, of another shape or kind of number, or
            with values that are not finite or larger than `LARGEST_WEIGHT`.
    """
    if odd := sorted(set(pieces) ^ set(due)):
        raise FederationError(f"{site} enrols with other pieces than its network has, the first is {odd[0]}")
    for name, value in pieces.items():
        place = due[name]
        if value.shape != place.shape or value.dtype != place.dtype:
            raise FederationError(
                f"{site} enrols with {name} of {value.dtype} {tuple(value.shape)}; its network has "
                f"{place.dtype} {tuple(place.shape)}"
            )
        if value.is_floating_point() and not bool((value.abs() <= LARGEST_WEIGHT).all()):
            raise FederationError(
                f"{site} enrols with values in {name} that are not finite, or beyond {LARGEST_WEIGHT:g}"
            )


def outlying_counts(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return the sites that claim too many samples beside the others, with a sentence for each.

    With fewer than three sites nobody can tell which of them is wrong, and none is named.
    """
    found: dict[str, str] = {}
    for site, profile in profiles.items() if len(profiles) > 2 else ():
        others = median_high(other.samples for name, other in profiles.items() if name != site)
        if profile.samples > LARGEST_RATIO * others:
            found[site] = (
                f"{site} enrols with {profile.samples} training samples, over {LARGEST_RATIO} times the others' median "
                f"of {others}"
            )
    return found


def partition_of(site: str, header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pieces of a site's network, as `Partition.to_json` wrote them.

    Raises:
        FederationError: They are malformed.
    """
    pieces = header.get("partition")
    try:
        if not isinstance(pieces, list):
            raise TypeError
        Partition.from_json(pieces)
    except (TypeError, KeyError, ValueError) as error:
        raise FederationError(
            f"{site} enrols with a malformed network partition; use one version of surgfl everywhere"
        ) from error
    return pieces


def profile_header(profile: Profile) -> dict[str, Any]:
    """Undo :func:`profile_of`."""
    return {
        "samples": profile.samples,
        "card": profile.card.to_json(),
        "items": dict(profile.items),
        "fixed": profile.fixed,
        "prepared": profile.prepared,
        "start": dict(profile.start),
    }


def check_together(
    method: Method, profiles: Mapping[str, Profile], partitions: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Refuse sites that do not fit together or to the method.

    Raises:
        FederationError: They differ in task, in the network's pieces, in what they start from, in FIXED weights or
            in the encoder of what their networks were told.
    """
    if not method.multi_task:
        cards = {site: profile.card for site, profile in profiles.items()}
        _check_equal("task", cards, "task and classes in site.yaml")
    _check_equal("network partition", partitions, "the version of surgfl and of the bundle")
    starts = {site: said(profile.start) for site, profile in profiles.items()}
    _check_equal("start", starts, "the weights that they begin from")
    hashes = {site: profile.fixed for site, profile in profiles.items()}
    _check_equal("fixed weights", hashes, "the weights that they begin from, which are not trained,")
    encoders = {site: profile.prepared for site, profile in profiles.items() if profile.prepared}
    _check_equal("encoder", encoders, "text_vectors or text_encoder in site.yaml")


def initial_models(
    method: Method, partition: Partition, sites: Sequence[str], given: Mapping[str, Pieces]
) -> Models:
    """Return what all start from: the first site's weights; where sites have several tasks, each its own MIXED ones.

    Raises:
        FederationError: Sites differ in the shape of what is shared.
    """

    def of_role(pieces: Pieces, role: Role) -> Pieces:
        return {name: pieces[name] for name in partition.with_roles(role) if name in pieces}

    first = given[sites[0]]
    shared = of_role(first, Role.GLOBAL)
    own = {site: given[site] if method.multi_task else first for site in sites}
    for site, pieces in own.items():
        for name, value in of_role(pieces, Role.GLOBAL).items():
            if value.shape != shared[name].shape:
                raise FederationError(
                    f"{site} and {sites[0]} differ in the shape of {name}, which {method.name} shares; make task and "
                    "classes in site.yaml agree"
                )
    return Models(shared, {site: of_role(pieces, Role.MIXED) for site, pieces in own.items()})


def is_start(value: Any) -> bool:
    """Say whether a value has the form of a profile's ``start``: its kind, and the hash of a file."""
    return (
        isinstance(value, Mapping)
        and set(value) == {"start", "sha256"}
        and value["start"] in STARTS
        and isinstance(value["sha256"], str)
        and bool(re.fullmatch(r"([0-9a-f]{64})?", value["sha256"]))
    )


def wrong_kind(method: Method, card: Card) -> str:
    """Say why a method is not for a task; nothing where it is."""
    if method.kinds is None or card.kind in method.kinds:
        return ""
    return (
        f"{method.name} is for {' and '.join(method.kinds)}, and the site's task is {card.kind}; "
        "choose another method or task"
    )


def check_as_before(before: Mapping[str, Profile], now: Mapping[str, Profile]) -> None:
    """Refuse a resume with other data.

    Raises:
        FederationError: A site has other training samples, another task, other weights to start from, other FIXED
            ones or another encoder than at the start.
    """
    for site, profile in before.items():
        if now[site].card != profile.card:
            raise FederationError(
                f"{site} has another task than when the run began ({now[site].card} now, {profile.card} then); "
                "restore it to resume, or start a new run"
            )
        if now[site].samples != profile.samples:
            raise FederationError(
                f"{site} has other data than when the run began ({now[site].samples} training frames now, "
                f"{profile.samples} then); restore it to resume, or start a new run"
            )
        if now[site].start != profile.start:
            raise FederationError(
                f"{site} has another start than when the run began ({said(now[site].start)} now, "
                f"{said(profile.start)} then); restore the file to resume, or start a new run"
            )
        if now[site].fixed != profile.fixed:
            raise FederationError(
                f"{site} has other fixed weights than when the run began; restore the weights that it began from to "
                "resume, or start a new run"
            )
        if now[site].prepared != profile.prepared:
            raise FederationError(
                f"{site} has another encoder than when the run began ({now[site].prepared or 'none'} now, "
                f"{profile.prepared or 'none'} then); restore text_vectors or text_encoder in site.yaml to resume, or "
                "start a new run"
            )


def _check_equal(what: str, values: Mapping[str, Any], where: str) -> None:
    first_site, first = next(iter(values.items()), ("", None))
    for site, value in values.items():
        if value != first:
            shown = f" ({_short(first)} and {_short(value)})"
            raise FederationError(
                f"{first_site} and {site} differ in their {what}{shown}; make {where} agree"
            )


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, (str, Card)) else f"{len(value)} pieces"
    return text if len(text) < 120 else f"{text[:117]}..."
