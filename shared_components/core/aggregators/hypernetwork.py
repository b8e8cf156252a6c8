"""Mix the layers of MIXED pieces with one hypernetwork per site, as PFedSIS (Section III-C.2, Eqs. (6)-(9)).

The hypernetworks follow pFedLA (Ma et al., CVPR 2022). A hypernetwork has an embedding of width 100, three hidden
layers of width 100, and one output of K weights per personal layer. Without the embedding, it has 34,542 weights for 14
layers and three sites (34.5 K in Table II), and 36,663 for pFedLA's 21 layers (its 36.6 K). Its tensors are in the
server's state.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor

from shared_components.core.aggregators.mean import in_site_order, normalised_entropy, weighted_sum
from shared_components.core.method import Models, Profile, State, Update, site_order
from shared_components.core.partition import Pieces, below, prefixed

WIDTH = 100
HIDDEN = 3
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]  # a million times this still fits a 64-bit seed


def first_state(
    layers: Mapping[str, Sequence[str]], models: Models, profiles: Sequence[Profile], *, seed: int
) -> State:
    """Return the hypernetwork and the last personal pieces of each site, or an empty state without layers."""
    state: State = {}
    sites = site_order(profile.site for profile in profiles)
    for number, site in enumerate(sites if layers else []):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        weights = init_hypernetwork(len(layers), len(sites), generator)
        state |= prefixed(f"hypernetwork/{site}/", weights) | prefixed(f"personal/{site}/", models.mixed[site])
    return state


def personal_step(
    state: State,
    layers: Mapping[str, Sequence[str]],
    models: Models,
    updates: Sequence[Update],
    *,
    rate: float,
    released: bool,
) -> tuple[State, dict[str, Pieces], dict[str, Any]]:
    """Train the hypernetworks of the sites with updates, then mix the layers of every site.

    ``layers`` are the piece names of each layer, and ``rate`` is the learning rate of Eqs. (8) and (9). ``released``
    descends instead of ascending, with products of the last round's weights. Absent sites contribute their last pieces.
    Returns the next state, MIXED pieces by site, and numbers for the record.
    """
    updates, state = in_site_order(updates), dict(state)
    sites = list(models.mixed)
    names = [name for group in layers.values() for name in group]
    start = [below(f"personal/{site}/", state) for site in sites]
    for update in updates:
        state |= prefixed(f"personal/{update.site}/", {name: update.pieces[name] for name in names})
    trained = [below(f"personal/{site}/", state) for site in sites]
    for update in updates:
        before = models.mixed[update.site]
        change: Pieces = {name: update.pieces[name] - before[name] for name in names}
        # Algorithm 1 updates theta_P^all to this round's weights first; the released code uses the last round's
        products = layer_products(layers, start if released else trained, change)
        weights = update_hypernetwork(
            below(f"hypernetwork/{update.site}/", state), products, learning_rate=rate, sign=-1.0 if released else 1.0
        )
        state |= prefixed(f"hypernetwork/{update.site}/", weights)
    mixings = {site: mixing_weights(below(f"hypernetwork/{site}/", state)) for site in sites}
    entropy = sum(map(mixing_entropy, mixings.values())) / len(mixings)
    shares = {
        site: {layer: dict(zip(sites, row, strict=True)) for layer, row in zip(layers, matrix.tolist(), strict=True)}
        for site, matrix in mixings.items()
    }
    # Eq. (7): layers of each site from the trained layers of all sites
    mixed = {site: mix(layers, trained, mixing) for site, mixing in mixings.items()}
    return state, mixed, {"entropy": {"hypernetwork": entropy}, "mixing": shares}


def init_hypernetwork(layers: int, sites: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Initialise one site's hypernetwork; outputs are uniform in (0, 1), so that weights start positive."""
    bound = WIDTH**-0.5
    weights = {"embedding": torch.randn(WIDTH, generator=generator)}
    for i in range(HIDDEN):
        weights[f"hidden.{i}.weight"] = (torch.rand(WIDTH, WIDTH, generator=generator) * 2 - 1) * bound
        weights[f"hidden.{i}.bias"] = (torch.rand(WIDTH, generator=generator) * 2 - 1) * bound
    weights["output.weight"] = torch.rand(layers, sites, WIDTH, generator=generator)
    weights["output.bias"] = torch.zeros(layers, sites)
    return weights


def mixing_weights(weights: Mapping[str, Tensor]) -> Tensor:
    """Return one site's aggregation matrix, Eq. (6): (layers, K), not negative, row sums 1; uniform for dead ReLUs."""
    hidden = weights["embedding"]
    for i in range(HIDDEN):
        hidden = torch.relu(weights[f"hidden.{i}.weight"] @ hidden + weights[f"hidden.{i}.bias"])
    # (layers, K, 100) @ (100,) -> (layers, K)
    outputs = torch.relu(weights["output.weight"] @ hidden + weights["output.bias"])
    total = outputs.sum(1, keepdim=True)
    uniform = torch.full_like(outputs, 1 / outputs.shape[1])
    return torch.where(total > 0, outputs / total.clamp_min(1e-12), uniform)


def update_hypernetwork(
    weights: Mapping[str, Tensor], products: Tensor, *, learning_rate: float, sign: float = 1.0
) -> dict[str, Tensor]:
    """Take one step along (d theta_P / d weights)^T Delta theta_P, Eqs. (8) and (9).

    With theta_P = sum_i theta_i omega_i per layer, this is the gradient of sum_l sum_i omega[l, i] * <theta_i^l,
    Delta^l>, so only the inner ``products`` (layers, K) are needed. The step is gradient ascent: the starting point
    moves in the direction of local training. The released code descends (``sign=-1``) with a learning rate of 5e-3.
    """
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    # its gradient equals Eqs. (8) and (9), because theta_P is linear in omega
    objective = (mixing_weights(leaves) * products.to(torch.float32)).sum()
    gradients = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    return {
        name: (leaf if gradient is None else leaf + sign * learning_rate * gradient).detach()
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def layer_products(layers: Mapping[str, Sequence[str]], all_pieces: Sequence[Pieces], change: Pieces) -> Tensor:
    """Return (layers, K) inner products <theta_i^l, Delta^l> in float64, for K sites and one site's Delta theta_P."""
    weights = {layer: [n for n in names if change[n].is_floating_point()] for layer, names in layers.items()}

    def dot(a: Tensor, b: Tensor) -> float:
        return float((a.to(torch.float64) * b.to(torch.float64)).sum())

    rows = [
        [sum(dot(pieces[name], change[name]) for name in names) for pieces in all_pieces] for names in weights.values()
    ]
    return torch.tensor(rows, dtype=torch.float64)


def mix(layers: Mapping[str, Sequence[str]], all_pieces: Sequence[Pieces], mixing: Tensor) -> Pieces:
    """Return the weighted sum of all sites' layers, Eq. (7); ``mixing`` is (layers, K)."""
    return {
        name: weighted_sum([pieces[name] for pieces in all_pieces], row.to(torch.float64).tolist())
        for names, row in zip(layers.values(), mixing, strict=True)
        for name in names
    }


def mixing_entropy(mixing: Tensor) -> float:
    """Return the mean entropy of the rows of ``mixing`` (layers, K), divided by log K; 1 is plain averaging."""
    entropy = torch.special.entr(mixing.to(torch.float64)).sum(1).mean()
    return normalised_entropy(float(entropy), mixing.shape[1])
