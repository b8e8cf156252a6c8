"""Implement SurgFed's language-guided hyper aggregation, LHA (arXiv 2603.09496, Section III-C, Eqs. (3) to (8)).

Each site attends to all sites' changes, separately for each tensor. A gate of the attended change and the site's text
scales the attended change, and a weight psi per site and tensor scales it again. One hypernetwork is shared by all
sites: u_k = MLP(text vector, 256, 1), and the gate's linear layer of (mean attended change, u_k). It has 131,588
numbers for text vectors of 512. The hypernetwork and psi learn from the next round's changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import in_site_order, normalised_entropy
from shared_components.core.method import Aggregation, Models, Profile, State, Update, site_order
from shared_components.core.partition import Partition, Pieces, Role, below, prefixed
from shared_components.data.profile_items import TEXT_VECTOR

Attention = Literal["plain", "cosine", "mean"]
Texts = Literal["own", "shuffled", "none"]
ITEM = TEXT_VECTOR  # required profile item
HIDDEN = 256
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # settings of Adam
TINY = 1e-30


@dataclass(frozen=True)
class LanguageGuided:
    """Aggregator of SurgFed.

    The state, in float64, has text vectors of the sites (``text/``), the hypernetwork (``gate/``), psi of each site
    (``psi/``), moments of Adam (``adam/``), and sites and changes of the last round (``last/``; changes in float32).
    The psi of an absent site is not updated. A single site gets back its own weights.

    Attention ``plain`` is Eq. (4), the softmax of <change_i, change_j> / sqrt(d), which is nearly uniform for real
    changes. ``cosine`` is the softmax of their cosines, and ``mean`` is uniform. The gate reads the sites' ``own``
    texts, ``shuffled`` texts (of other sites), or ``none`` (zeros, also for sites without a text vector).
    """

    attention: str = "plain"
    texts: str = "own"
    psi: float = 0.1  # initial psi; psi stays in [0, 1]
    rate: float = 1e-3  # learning rate of Adam for psi and the hypernetwork
    decay: float = 0.0  # L2 decay of Adam
    seed: int = 0  # seed of the hypernetwork's initial weights
    released: bool = False  # gate each change before the attention and ascend the gradient, as released

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        vectors = site_vectors(profiles, self.texts)
        weights = prefixed("gate/", first_gate(len(next(iter(vectors.values()))), self.seed))
        count = len(_common_names(partition, models))
        weights |= {f"psi/{site}": torch.full((count,), self.psi, dtype=torch.float64) for site in vectors}
        moments = {f"adam/{kind}/{n}": torch.zeros_like(v) for kind in ("first", "second") for n, v in weights.items()}
        steps = {f"adam/steps/{name}": torch.tensor(0) for name in weights}
        return {**prefixed("text/", vectors), **weights, **moments, **steps}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Learn from this round's changes, then apply attention to the sites with updates; absent sites keep theirs."""
        updates = in_site_order(updates)
        sites, names = [update.site for update in updates], _common_names(partition, models)
        round = _measure(state, models, updates, names)
        state = self._learned(state, sites, round)
        kept = {name: value for name, value in state.items() if not name.startswith("last/")}
        mixed = {**models.mixed, **{update.site: dict(update.pieces) for update in updates}}
        if len(sites) == 1 or not names:  # nothing to attend to
            return Aggregation(kept, Models(models.shared, mixed), self._report(kept, sites))
        coefficients, shares = self._mixing(below("gate/", kept), _stacked(kept, "text/", sites), round.facts)
        for number, name in enumerate(names):
            psi = _stacked(kept, "psi/", sites)[:, number, None]  # (K, 1)
            change = _stacked(round.kept, "last/change/", sites, f"/{name}").flatten(1).double()  # (K, ...) -> (K, D)
            attended = psi * (coefficients[number] @ change)  # Eq. (7): psi_k A~_k, (K, K) @ (K, D)
            for update, moved in zip(updates, attended, strict=True):
                value = update.pieces[name]  # w_k^{t-1} + Delta w_k^t
                mixed[update.site][name] = (value.double() + moved.view(value.shape)).to(value.dtype)
        return Aggregation(kept | round.kept, Models(models.shared, mixed), self._report(kept, sites, shares))

    def _mixing(self, gate: Pieces, texts: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        return mixing(gate, texts, facts, attention=self.attention, released=self.released)

    def _learned(self, state: State, sites: Sequence[str], round: Round) -> State:
        """Take a step of Adam on psi and the hypernetwork, by the chain rule from this round's changes, Eq. (8).

        The loss falls along a site's change, so its gradient is minus the change. The released code uses the change.
        """
        if not round.both:
            return state
        last = site_order(below("last/moved/", state))
        rows = [last.index(site) for site in round.both]
        names = [n for n in state if n.startswith("gate/")] + [f"psi/{site}" for site in round.both]
        leaves = {name: state[name].clone().requires_grad_() for name in sorted(names)}
        facts = Facts(state["last/products"], state["last/means"], round.facts.sizes)
        coefficients, _ = self._mixing(below("gate/", leaves), _stacked(state, "text/", last), facts)
        # <A~_k of the last round, this round's change>: (L, B, K) * (L, B, K) -> (L, B)
        gain = (coefficients[:, rows] * round.crossed).sum(2)
        objective = (_stacked(leaves, "psi/", round.both).T * gain).sum() * (1.0 if self.released else -1.0)
        gradients = torch.autograd.grad(objective, list(leaves.values()))
        after = dict(state)
        for name, gradient in zip(leaves, gradients, strict=True):
            after |= adam_step(state, name, gradient, rate=self.rate, decay=self.decay)
        return after | {f"psi/{site}": after[f"psi/{site}"].clamp(0, 1) for site in round.both}

    def _report(self, state: State, sites: Sequence[str], shares: Tensor | None = None) -> dict[str, Any]:
        """Return the mean psi of each site, the sites without text, and the mean entropy of the attention."""
        report: dict[str, Any] = {"psi": {site: float(state[f"psi/{site}"].mean()) for site in sites}}
        texts = below("text/", state)
        if silent := [site for site in sites if self.texts != "none" and not bool(texts[site].any())]:
            report["without_text"] = silent
        if shares is not None:
            entropy = float(torch.special.entr(shares).sum(2).mean())
            report["entropy"] = {"attention": normalised_entropy(entropy, len(sites))}
        return report


@dataclass(frozen=True)
class Facts:
    """Inputs of attention and gate in one round, for L tensors of K sites."""

    products: Tensor  # <change_i, change_j>, (L, K, K)
    means: Tensor  # means of the changes, (L, K)
    sizes: Tensor  # number d of elements of each tensor, (L,)


def site_vectors(profiles: Sequence[Profile], texts: str) -> dict[str, Tensor]:
    """Return each site's text vector (D,) in float64; zeros without text; ``shuffled``: the next site's with a text."""
    given = {p.site: p.items.get(TEXT_VECTOR) for p in profiles} if texts != "none" else {}
    vectors = {site: item["values"] for site in site_order(given) if (item := given[site])}
    if texts == "shuffled":
        values = list(vectors.values())
        vectors = dict(zip(vectors, values[1:] + values[:1], strict=True))
    width = max(map(len, vectors.values()), default=1)
    sites = site_order(profile.site for profile in profiles)
    return {site: torch.tensor(vectors.get(site, [0.0] * width), dtype=torch.float64) for site in sites}


def first_gate(width: int, seed: int) -> Pieces:
    """Initialise the hypernetwork for text vectors of ``width``: uniform within 1 / sqrt(inputs), like nn.Linear."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"mlp.0": (width, (HIDDEN, width), (HIDDEN,)), "mlp.1": (HIDDEN, (HIDDEN,), ()), "fc": (2, (2,), ())}
    weights: Pieces = {}
    for layer, (inputs, *of_layer) in shapes.items():
        for name, shape in zip(("weight", "bias"), of_layer, strict=True):
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
            weights[f"{layer}.{name}"] = (drawn * 2 - 1) * inputs**-0.5
    return weights


def mixing(
    gate: Mapping[str, Tensor], texts: Tensor, facts: Facts, *, attention: str, released: bool
) -> tuple[Tensor, Tensor]:
    """Return m (L, K, K) of A~_i = sum_j m_ij change_j, and the attention (L, K, K), for texts (K, D)."""
    hidden = torch.relu(texts @ gate["mlp.0.weight"].T + gate["mlp.0.bias"])  # (K, D) -> (K, 256)
    words = hidden @ gate["mlp.1.weight"] + gate["mlp.1.bias"]  # u_k: (K, 256) -> (K,)

    def opened(pooled: Tensor) -> Tensor:  # 1 + Eq. (5), one number per site and tensor: (L, K)
        return 1 + (pooled * gate["fc.weight"][0] + words * gate["fc.weight"][1] + gate["fc.bias"]).sigmoid()

    if released:
        factor = opened(facts.means)
        products = facts.products * factor[:, :, None] * factor[:, None, :]
        shares = attend(products, facts.sizes, attention)
        return shares * factor[:, None, :], shares
    shares = attend(facts.products, facts.sizes, attention)
    pooled = (shares @ facts.means[:, :, None]).squeeze(2)  # AvgPool(A_k): (L, K, K) @ (L, K, 1) -> (L, K)
    return shares * opened(pooled)[:, :, None], shares  # Eq. (6)


def attend(products: Tensor, sizes: Tensor, attention: str) -> Tensor:
    """Return the attention of Eq. (4), (L, K, K) with row sums 1, for products (L, K, K); see `LanguageGuided`."""
    if attention == "mean":
        return torch.full_like(products, 1 / products.shape[1])
    if attention == "cosine":
        norms = products.diagonal(dim1=1, dim2=2).clamp_min(TINY).sqrt()  # (L, K)
        return torch.softmax(products / norms[:, :, None] / norms[:, None, :], 2)
    return torch.softmax(products / sizes.sqrt()[:, None, None], 2)


def adam_step(state: State, name: str, gradient: Tensor, *, rate: float, decay: float) -> State:
    """Return the entries of a state after a step of Adam (Kingma and Ba, ICLR 2015): weight, moments and count."""
    steps = state[f"adam/steps/{name}"] + 1
    gradient = gradient + decay * state[name]
    first = BETA_1 * state[f"adam/first/{name}"] + (1 - BETA_1) * gradient
    second = BETA_2 * state[f"adam/second/{name}"] + (1 - BETA_2) * gradient.square()
    unbiased = [moment / (1 - beta ** int(steps)) for moment, beta in ((first, BETA_1), (second, BETA_2))]
    moved = state[name] - rate * unbiased[0] / (unbiased[1].sqrt() + EPSILON)
    return {
        name: moved, f"adam/first/{name}": first, f"adam/second/{name}": second, f"adam/steps/{name}": steps
    }  # fmt: skip


@dataclass(frozen=True)
class Round:
    """Changes of a round."""

    facts: Facts  # for the sites with updates
    both: list[str]  # sites that also took part in the last round, if it had attention
    crossed: Tensor  # (L, B, K) products of their changes with all changes of the last round
    kept: State  # part of the state for the next round, see `LanguageGuided`


def _measure(state: State, models: Models, updates: Sequence[Update], names: Sequence[str]) -> Round:
    """Return the changes of a round (float32) and their products with each other and the last changes (float64)."""
    sites, last = [update.site for update in updates], site_order(below("last/moved/", state))
    both = [site for site in sites if site in last]
    kept: State = {f"last/moved/{site}": torch.tensor(1) for site in sites}
    products, means, crossed = [], [], []
    for name in names:
        changes = [(u.pieces[name].double() - models.mixed[u.site][name].double()).float() for u in updates]
        kept |= {f"last/change/{site}/{name}": change for site, change in zip(sites, changes, strict=True)}
        rows = torch.stack(changes).flatten(1).double()  # Eq. (3), V: (K, ...) -> (K, D)
        products.append(rows @ rows.T)
        means.append(rows.mean(1))
        if both:
            before = _stacked(state, "last/change/", last, f"/{name}").flatten(1).double()  # (K', ...) -> (K', D)
            crossed.append(rows[[sites.index(site) for site in both]] @ before.T)
    empty = torch.zeros(0, dtype=torch.float64)
    sizes = torch.tensor([updates[0].pieces[name].numel() for name in names], dtype=torch.float64)
    facts = Facts(torch.stack(products or [empty]), torch.stack(means or [empty]), sizes)
    kept |= {"last/products": facts.products, "last/means": facts.means}
    return Round(facts, both, torch.stack(crossed or [empty]), kept)


def _common_names(partition: Partition, models: Models) -> list[str]:
    """Return the floating-point MIXED pieces with the same shape at all sites, in the order of the network."""

    def alike(name: str) -> bool:
        values = [own[name] for own in models.mixed.values() if name in own]
        same = len(values) == len(models.mixed) and len({value.shape for value in values}) == 1
        return same and values[0].is_floating_point()

    return [name for name in partition.with_roles(Role.MIXED) if alike(name)]


def _stacked(state: State, prefix: str, sites: Sequence[str], suffix: str = "") -> Tensor:
    return torch.stack([state[f"{prefix}{site}{suffix}"] for site in sites])  # (K, ...)
