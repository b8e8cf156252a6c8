"""Attacks of one site on the others: what it sends in place of its honest reply.

The attacker sees everything: its own message and reply, and those of all honest sites in the same round. Every
attack is a function of that, made by one of the functions below; `attacked` puts it into an exchange with a
federation in this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median_high

import torch
from torch import Tensor

from shared_components.core.partition import Pieces
from shared_components.core.training import round_seed
from shared_components.federation.messages import Message
from shared_components.federation.protocol import Answers, Ask

Changes = dict[str, Tensor]


@dataclass(frozen=True)
class Exchange:
    """What a site received for a round, and its honest reply."""

    received: Message
    reply: Message

    def changes(self) -> Changes:
        """Return by how much each piece moved, in float64; counters (integers) are left out."""
        sent, got = self.reply.pieces, self.received.pieces
        return {n: v.double() - got[n].double() for n, v in sent.items() if v.is_floating_point()}


@dataclass(frozen=True)
class Seen:
    """What the attacker knows of a round: its own exchange, all honest ones, and a random stream."""

    own: Exchange
    honest: Mapping[str, Exchange]
    generator: torch.Generator


Attack = Callable[[Seen], Message]


def sign_flip(*, times: float = 1.0) -> Attack:
    """Return the attack that sends its own change the other way, ``times`` as far; -1 is honest.

    Li et al., RSA, AAAI 2019 (arXiv 1811.03761).
    """

    def attack(seen: Seen) -> Message:
        if times == -1:
            return seen.own.reply
        return _moved(seen.own, {name: -times * value for name, value in seen.own.changes().items()})

    return attack


def noise(*, times: float = 1.0) -> Attack:
    """Return the attack that adds Gaussian noise, expected to be ``times`` as long as its own change; 0 is honest."""

    def attack(seen: Seen) -> Message:
        if times == 0:
            return seen.own.reply
        changes = seen.own.changes()
        elements = sum(value.numel() for value in changes.values())
        length = math.sqrt(sum(float(value.square().sum()) for value in changes.values()))
        deviation = times * length / math.sqrt(elements)
        drawn = {
            name: value + deviation * torch.randn(value.shape, generator=seen.generator, dtype=value.dtype)
            for name, value in changes.items()
        }
        return _moved(seen.own, drawn)

    return attack


def inner_product(*, epsilon: float = 0.5) -> Attack:
    """Return inner-product manipulation: minus ``epsilon`` times the mean of the honest sites' changes.

    Xie et al., Fall of Empires, UAI 2019 (arXiv 1903.03936). A small epsilon hides among the honest changes
    from rules that choose by distance, a large one turns a mean round.
    """

    def attack(seen: Seen) -> Message:
        honest = [exchange.changes() for exchange in seen.honest.values()]
        mean = {name: sum(one[name] for one in honest) / len(honest) for name in honest[0]}
        return _moved(seen.own, {name: -epsilon * value for name, value in mean.items()})

    return attack


def mimic(*, victim: str | None = None) -> Attack:
    """Return the attack that sends again what one honest site sends, which then counts twice.

    Karimireddy et al., ICLR 2022 (arXiv 2006.09365), Section 3.2. They choose the site whose updates vary most; here it
    is the first one unless it is named. Numbers of frames and losses stay the attacker's own.
    """

    def attack(seen: Seen) -> Message:
        copied = seen.honest[victim or next(iter(seen.honest))].reply
        return replace(seen.own.reply, pieces=copied.pieces, groups=copied.groups)

    return attack


def inflated(
    *,
    times: float = 1.0,
    group: str = "sensitivity",
    everywhere: bool = False,
    with_pieces: Attack = lambda seen: seen.own.reply,
) -> Attack:
    """Return the attack that says its own weights matter most: an extra multiplied by ``times``; 1 is honest.

    Args:
        times: The factor. With ``everywhere`` the extra is this many times the others' median of their largest
            numbers, the same in every element: the most that a bound relative to the others lets pass.
        group: Which extra.
        everywhere: Whether every element gets that number.
        with_pieces: The attack that chooses the pieces to go with it.
    """

    def attack(seen: Seen) -> Message:
        reply = with_pieces(seen)
        if everywhere:
            sizes = [_largest(exchange.reply.groups[group]) for exchange in seen.honest.values()]
            number = times * median_high(sizes)
            extra = {name: torch.full_like(v, number) for name, v in reply.groups[group].items()}
        else:
            extra = {name: value * times for name, value in reply.groups[group].items()}
        return replace(reply, groups={**reply.groups, group: extra})

    return attack


def attacked(ask: Ask, answers: Answers, attacker: str, attack: Attack | None, *, round: int, seed: int = 0) -> Answers:
    """Return the answers to a round with the attacker's in place of its honest one; other tasks are let be."""
    if attack is None or ask.task != "round" or attacker not in answers.replies:
        return answers
    exchanges = {site: Exchange(ask.messages[site], reply) for site, reply in answers.replies.items()}
    own = exchanges.pop(attacker)
    generator = torch.Generator().manual_seed(round_seed(seed, len(exchanges), round))
    return Answers({**answers.replies, attacker: attack(Seen(own, exchanges, generator))}, answers.failures)


def _moved(exchange: Exchange, changes: Changes) -> Message:
    """Return the site's reply with pieces that lie as far from what it received as the changes say."""
    received, reply = exchange.received.pieces, exchange.reply
    moved = {
        name: (received[name].double() + changes[name]).to(value.dtype) if name in changes else value
        for name, value in reply.pieces.items()
    }
    return replace(reply, pieces=moved)


def _largest(pieces: Pieces) -> float:
    return max(float(value.abs().max()) for value in pieces.values())
