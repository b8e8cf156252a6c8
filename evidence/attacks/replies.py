"""Attacks of one site on the others, by replacing its honest reply.

The attacker sees its own message and reply, and all honest sites' messages and replies of the same round. Each attack
is a function of these; `attacked` applies it in a federation in this process.
"""

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
    """A site's received message of a round, and its honest reply."""

    received: Message
    reply: Message

    def changes(self) -> Changes:
        """Return the change of each piece in float64, without integer counters."""
        sent, got = self.reply.pieces, self.received.pieces
        return {n: v.double() - got[n].double() for n, v in sent.items() if v.is_floating_point()}


@dataclass(frozen=True)
class Seen:
    """The attacker's knowledge of a round: its own exchange, all honest exchanges, and a random generator."""

    own: Exchange
    honest: Mapping[str, Exchange]
    generator: torch.Generator


Attack = Callable[[Seen], Message]


def sign_flip(*, times: float = 1.0) -> Attack:
    """Return the attack that sends its change with the opposite sign, ``times`` as long; -1 is honest.

    Li et al., RSA, AAAI 2019 (arXiv 1811.03761).
    """

    def attack(seen: Seen) -> Message:
        if times == -1:
            return seen.own.reply
        return _moved(seen.own, {name: -times * value for name, value in seen.own.changes().items()})

    return attack


def noise(*, times: float = 1.0) -> Attack:
    """Return the attack that adds Gaussian noise of an expected length of ``times`` its change; 0 is honest."""

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
    """Return inner-product manipulation: minus ``epsilon`` times the mean of the honest changes.

    Xie et al., Fall of Empires, UAI 2019 (arXiv 1903.03936). Rules that select by distance do not detect a small
    epsilon; a large epsilon reverses the mean.
    """

    def attack(seen: Seen) -> Message:
        honest = [exchange.changes() for exchange in seen.honest.values()]
        mean = {name: sum(one[name] for one in honest) / len(honest) for name in honest[0]}
        return _moved(seen.own, {name: -epsilon * value for name, value in mean.items()})

    return attack


def mimic(*, victim: str | None = None) -> Attack:
    """Return mimicry: the attack that copies the reply of an honest site, which then counts twice.

    Karimireddy et al., ICLR 2022 (arXiv 2006.09365), Section 3.2. They copy the site with the largest variance of
    updates; here the default is the first site. Numbers of frames and losses are the attacker's own.
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
    """Return the attack that multiplies an extra, which sets the weight of its model, by ``times``; 1 is honest.

    Args:
        times: The factor. With ``everywhere``, each element of the extra is this multiple of the median of the others'
            largest elements, so that it passes a bound relative to the others.
        group: Name of the extra.
        everywhere: Whether all elements get this number.
        with_pieces: Attack on the weights to combine with.
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
    """Return the answers to a round with the attacker's answer replaced; other tasks are unchanged."""
    if attack is None or ask.task != "round" or attacker not in answers.replies:
        return answers
    exchanges = {site: Exchange(ask.messages[site], reply) for site, reply in answers.replies.items()}
    own = exchanges.pop(attacker)
    generator = torch.Generator().manual_seed(round_seed(seed, len(exchanges), round))
    return Answers({**answers.replies, attacker: attack(Seen(own, exchanges, generator))}, answers.failures)


def _moved(exchange: Exchange, changes: Changes) -> Message:
    """Return the site's reply with the received weights plus the given changes."""
    received, reply = exchange.received.pieces, exchange.reply
    moved = {
        name: (received[name].double() + changes[name]).to(value.dtype) if name in changes else value
        for name, value in reply.pieces.items()
    }
    return replace(reply, pieces=moved)


def _largest(pieces: Pieces) -> float:
    return max(float(value.abs().max()) for value in pieces.values())
