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

from shared_components.core.aggregators.mean import in_site_order, normalised_entropy, stacked_blocks, weighted_sums
from shared_components.core.method import Models, Profile, State, Update, site_order
from shared_components.core.partition import Pieces, prefixed

WIDTH = 100
HIDDEN = 3
HIDDEN_TENSORS = [f"hidden.{i}.{kind}" for i in range(HIDDEN) for kind in ("weight", "bias")]
TENSORS = ["embedding", *HIDDEN_TENSORS, "output.weight", "output.bias"]
CHUNK = 1 << 11  # terms of an inner product in one matrix product: fewer terms, smaller rounding errors
OTHER_SUM = 1 << 9  # largest number of additions, one after another, in PyTorch's sum of any tensor
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
    start = {site: {name: state[f"personal/{site}/{name}"] for name in names} for site in sites}
    trained = start | {update.site: {name: update.pieces[name] for name in names} for update in updates}
    # Algorithm 1 updates theta_P^all to this round's weights first; the released code uses the last round's
    factors = list((start if released else trained).values())
    moved = [(trained[update.site], models.mixed[update.site]) for update in updates]
    for update, products in zip(updates, layer_products(layers, factors, moved), strict=True):
        place = f"hypernetwork/{update.site}/"
        weights = {name: state[f"{place}{name}"] for name in TENSORS}
        state |= prefixed(place, update_hypernetwork(weights, products, rate=rate, sign=-1.0 if released else 1.0))
        state |= prefixed(f"personal/{update.site}/", trained[update.site])
    mixings = [mixing_weights({name: state[f"hypernetwork/{site}/{name}"] for name in TENSORS}) for site in sites]
    entropy = sum(map(mixing_entropy, mixings)) / len(mixings)
    shares = {
        site: {layer: dict(zip(sites, row, strict=True)) for layer, row in zip(layers, matrix.tolist(), strict=True)}
        for site, matrix in zip(sites, mixings, strict=True)
    }
    # Eq. (7): layers of each site from the trained layers of all sites
    mixed = dict(zip(sites, mix(layers, list(trained.values()), torch.stack(mixings)), strict=True))
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
    weights: Mapping[str, Tensor], products: Tensor, *, rate: float, sign: float = 1.0
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
        name: (leaf if gradient is None else leaf + sign * rate * gradient).detach()
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def layer_products(
    layers: Mapping[str, Sequence[str]], all_pieces: Sequence[Pieces], moved: Sequence[tuple[Pieces, Pieces]]
) -> Tensor:
    """Return float32 (U, layers, K) inner products <Delta_u^l, theta_k^l> of U sites' changes and K sites' pieces.

    A change is given as the pieces (after, before) the training. Each product is the float64 sum over tensor after
    tensor. Matrix products give most of them: if all sums within the bound of rounding errors have one float32 value.
    """
    products = []
    for names in layers.values():
        floating = [name for name in names if all_pieces[0][name].is_floating_point()]
        near, margin = _near_products(floating, all_pieces, moved)
        layer = (near - margin).float()
        for u, k in (layer != (near + margin).float()).nonzero().tolist():
            after, before = moved[u]
            layer[u, k] = sum(_dot(all_pieces[k][name], after[name] - before[name]) for name in floating)
        products.append(layer)
    return torch.stack(products, 1)


def _near_products(
    names: Sequence[str], all_pieces: Sequence[Pieces], moved: Sequence[tuple[Pieces, Pieces]]
) -> tuple[Tensor, Tensor]:
    """Return one layer's products by matrix products, and their largest distance from a sum in another order (U, K).

    The error of a sum of n products is at most n epsilon sum |a b|, and sum |a b| is at most |a| |b|.
    """
    near = torch.zeros(len(moved), len(all_pieces), dtype=torch.float64)
    squares = [torch.zeros(count, dtype=torch.float64) for count in near.shape]
    terms = CHUNK + OTHER_SUM + len(names)
    for name in names:
        theta = stacked_blocks([pieces[name] for pieces in all_pieces])
        delta = stacked_blocks([after[name] - before[name] for after, before in moved])
        for rows in zip(delta, theta, strict=True):  # (U, n) and (K, n)
            for total, values in zip(squares, rows, strict=True):
                total += torch.linalg.vector_norm(values, dim=1).square()
            for left, right in zip(*(values.split(CHUNK, dim=1) for values in rows), strict=True):
                near += left @ right.T  # (U, n) @ (n, K)
                terms += 1
    return near, torch.outer(*(total.sqrt() for total in squares)) * (2 * terms * torch.finfo(torch.float64).eps)


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.to(torch.float64) * b.to(torch.float64)).sum())


def mix(layers: Mapping[str, Sequence[str]], all_pieces: Sequence[Pieces], mixings: Tensor) -> list[Pieces]:
    """Return the weighted sums of all sites' layers, Eq. (7), for each matrix of ``mixings`` (sites, layers, K)."""
    mixed: list[Pieces] = [{} for _ in mixings]
    for names, weights in zip(layers.values(), mixings.transpose(0, 1), strict=True):
        for name in names:
            sums = weighted_sums([pieces[name] for pieces in all_pieces], weights.to(torch.float64))
            for pieces, value in zip(mixed, sums, strict=True):
                pieces[name] = value
    return mixed


def mixing_entropy(mixing: Tensor) -> float:
    """Return the mean entropy of the rows of ``mixing`` (layers, K), divided by log K; 1 is plain averaging."""
    entropy = torch.special.entr(mixing.to(torch.float64)).sum(1).mean()
    return normalised_entropy(float(entropy), mixing.shape[1])
