"""FedHCA2: Lu et al., Towards Hetero-Client Federated Multi-Task Learning, CVPR 2024 (arXiv 2311.13250).

Encoders follow a conflict-averse direction of all sites' changes; decoders attend to the changes of other sites.
Learned weights scale both steps (core/aggregators/conflict.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.aggregators.clustering import first_groups, groups_of
from shared_components.core.aggregators.conflict import attention, conflict_averse, hyper_step, inner_products
from shared_components.core.aggregators.mean import in_site_order, normalised_entropy, weight_names
from shared_components.core.exchange import Aggregation, Models, Profile, State, Update, site_order
from shared_components.core.method import About, Method, Requires, Server
from shared_components.core.partition import Partition, Pieces, Role, Slice, TensorRule, below
from shared_components.core.ranges import FromZero, Names, Share, ShareBelowOne, SomeNames
from shared_components.networks.parts import inside, resolve, shared_paths

ENCODER_LAYER = "encoder"  # the whole encoder is one layer; a decoder's layers are named by module path


def build(
    *,
    encoder: SomeNames = ("encoder",),
    decoders: Names = ("decoder",),
    conflict: ShareBelowOne = 0.4,
    alpha: Share = 0.1,
    beta: Share = 0.1,
    hyper_rate: FromZero = 0.01,
    momentum: ShareBelowOne = 0.9,
    weight_decay: FromZero = 1e-4,
) -> Method:
    """Return FedHCA2.

    Args:
        encoder: Parts or modules that follow the conflict-averse direction.
        decoders: Parts or modules that attend to the decoders of other sites. All other parts stay at the site.
        conflict: Constant c of CAGrad, the maximum distance of its direction from the mean change; 0 is the mean.
        alpha: Initial weight of the conflict-averse direction in the encoders' step.
        beta: Initial weight of the attended changes in the decoders' step.
        hyper_rate, momentum, weight_decay: Settings of the optimizer of alpha and beta; with a hyper_rate of 0 both
            stay constant.
    """
    return Method(
        partition=EncoderAndDecoders(tuple(encoder), tuple(decoders)),
        server=Server(
            aggregator=HyperWeights(conflict, alpha, beta, rate=hyper_rate, inertia=momentum, decay=weight_decay),
            trained=("alpha/", "beta/"),
        ),
        requires=Requires(multi_task=True),
        about=About(
            label="FedHCA2",
            paper="Lu et al., CVPR 2024, arXiv 2311.13250",
            idea="Hospitals with different tasks share changes that harm none; the server learns how much each gets.",
            partition="encoder and decoders MIXED, classifiers LOCAL",
            aggregator="learned weights: conflict-averse direction (encoder), cross-attention between changes "
            "(decoders)",
            secure_sums="no: the server compares sites' changes",
        ),
    )


@dataclass(frozen=True)
class EncoderAndDecoders:
    """Make encoder and decoders MIXED and the rest LOCAL; each module of a decoder is a layer."""

    encoder: tuple[str, ...]
    decoders: tuple[str, ...]

    def __call__(self, network: nn.Module) -> TensorRule:
        encoder = resolve(network, self.encoder, "fedhca2: encoder")
        decoders = resolve(network, self.decoders, "fedhca2: decoders") if self.decoders else frozenset()
        if both := shared_paths(encoder, decoders):
            raise ValueError(f"fedhca2: {both[0]} is in 'encoder' and in 'decoders'; remove it from one of them")

        def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
            if inside(name, encoder):
                return (Slice(Role.MIXED, layer=ENCODER_LAYER),)
            if inside(name, decoders):
                return (Slice(Role.MIXED, layer=name.rpartition(".")[0]),)
            return (Slice(Role.LOCAL),)

        return slices


@dataclass(frozen=True)
class HyperWeights:
    """Aggregate encoders and decoders with the learned weights alpha and beta.

    The state contains every site's task (``group/``), alpha and beta, and the momentum of their optimizer. It also
    contains the last round's factors of alpha and beta: the direction U (``direction/``) and the attended changes
    (``attended/``) of sites that took part (``moved/``).
    """

    conflict: float
    alpha: float
    beta: float
    rate: float
    inertia: float
    decay: float

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        state = first_groups(profiles)
        count = len(_layers(partition)[1])
        for site in site_order(profile.site for profile in profiles):
            state[f"alpha/{site}"] = torch.tensor(self.alpha, dtype=torch.float64)
            state[f"beta/{site}"] = torch.full((count,), self.beta, dtype=torch.float64)
            state[f"momentum/alpha/{site}"] = torch.zeros((), dtype=torch.float64)
            state[f"momentum/beta/{site}"] = torch.zeros(count, dtype=torch.float64)
        return state

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Update alpha and beta from this round's changes, then aggregate; absent sites keep their model."""
        updates = in_site_order(updates)
        encoder, layers = _layers(partition)
        changes = {u.site: _changes(u.pieces, models.mixed[u.site]) for u in updates}
        state = self._learned(state, layers, changes)
        after = {n: v for n, v in state.items() if not n.startswith(("direction/", "attended/", "moved/"))}
        new, coefficients = self._encoders(after, encoder, models, changes)  # without absent sites
        entropy = 0.0
        for number, names in enumerate(layers.values()):
            for name in names:
                entropy += self._attend(after, number, name, models, changes, new)
        mixed = dict(models.mixed)
        for update in updates:
            after[f"moved/{update.site}"] = torch.tensor(1)
            mixed[update.site] = {name: new[update.site].get(name, value) for name, value in update.pieces.items()}
        report: dict[str, Any] = {
            "groups": groups_of(after),
            "alpha": {site: float(after[f"alpha/{site}"].clamp(0, 1)) for site in changes},
            "beta": {site: float(after[f"beta/{site}"].clamp(0, 1).mean()) if layers else 0.0 for site in changes},
            "conflict": dict(zip(changes, coefficients.tolist(), strict=True)),
        }
        if layers:
            report["entropy"] = {"attention": entropy / sum(map(len, layers.values()))}
        return Aggregation(after, Models(models.shared, mixed), report)

    def _learned(self, state: State, layers: Mapping[str, list[str]], changes: Mapping[str, Pieces]) -> State:
        """Update alpha and beta by the gradient of the last aggregate times (last - current)."""
        state = dict(state)
        direction = below("direction/", state)
        for site, change in changes.items():
            if f"moved/{site}" not in state:
                continue
            attended = below(f"attended/{site}/", state)
            gains = [_dot(attended, change, [n for n in names if n in attended]) for names in layers.values()]
            beta = -torch.stack(gains or [torch.zeros(0, dtype=torch.float64)]).reshape(-1)
            # d/d alpha of <alpha U, last - current>
            slopes = {"alpha": -_dot(direction, change, direction), "beta": beta}
            for kind, slope in slopes.items():
                weight, inertia = f"{kind}/{site}", f"momentum/{kind}/{site}"
                state[weight], state[inertia] = hyper_step(
                    state[weight], slope, state[inertia], rate=self.rate, decay=self.decay, inertia=self.inertia
                )
        return state

    def _encoders(
        self, after: State, encoder: Sequence[str], models: Models, changes: Mapping[str, Pieces]
    ) -> tuple[dict[str, Pieces], Tensor]:
        """Return theta_i = last + mean change of the sites with the same task + clamp(alpha_i, 0, 1) U."""
        groups, sites = groups_of(after), list(changes)
        names = [n for n in encoder if all(n in c for c in changes.values())]
        coefficients = conflict_averse(inner_products(list(changes.values()), names), self.conflict)
        new: dict[str, Pieces] = {site: {} for site in sites}
        for name in names:
            stacked = torch.stack([changes[site][name] for site in sites])  # (K, ...)
            direction = torch.tensordot(coefficients, stacked, dims=1)  # (K,), (K, ...) -> (...)
            after[f"direction/{name}"] = direction.to(torch.float32)
            for site in sites:
                last = models.mixed[site][name]
                own = [k for k, other in enumerate(sites) if groups[other] == groups[site]]
                share = after[f"alpha/{site}"].clamp(0, 1)
                moved = last.to(torch.float64) + stacked[own].mean(0) + share * direction
                new[site][name] = moved.to(last.dtype)
        return new, coefficients

    def _attend(
        self, after: State, number: int, name: str, models: Models, changes: Mapping[str, Pieces],
        new: Mapping[str, Pieces],
    ) -> float:  # fmt: skip
        """Set theta_i = last + change_i + clamp(beta_i, 0, 1) sum_j a_ij change_j, over sites with the same shape.

        Returns the entropy of a_i divided by the log of the number of these sites, averaged over sites.
        """
        shapes: dict[torch.Size, list[str]] = {}
        for site, change in changes.items():
            if name in change:
                shapes.setdefault(change[name].shape, []).append(site)
        entropy, count = 0.0, 0
        for sites in shapes.values():
            shares = attention([changes[site][name] for site in sites])  # rows a_i: (K, K)
            entropy += sum(normalised_entropy(float(torch.special.entr(row).sum()), len(sites)) for row in shares)
            count += len(sites)
            stacked = torch.stack([changes[site][name] for site in sites])  # (K, ...)
            for site, row in zip(sites, shares, strict=True):
                attended = torch.tensordot(row, stacked, dims=1)
                after[f"attended/{site}/{name}"] = attended.to(torch.float32)
                last = models.mixed[site][name]
                share = after[f"beta/{site}"][number].clamp(0, 1)
                moved = last.to(torch.float64) + changes[site][name] + share * attended
                new[site][name] = moved.to(last.dtype)
        return entropy / count if count else 1.0


def _layers(partition: Partition) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of the encoder's pieces, and the names of the pieces of each decoder layer."""
    layers = partition.mixed_layers
    return layers.pop(ENCODER_LAYER, []), layers


def _changes(pieces: Mapping[str, Tensor], before: Pieces) -> Pieces:
    """Return the change of the trained weights, in float64."""
    return {name: pieces[name].to(torch.float64) - before[name].to(torch.float64) for name in weight_names(pieces)}


def _dot(a: Pieces, b: Pieces, names: Sequence[str] | Mapping[str, Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for name in sorted(names):  # a loaded state has another order
        total += (a[name].to(torch.float64) * b[name]).sum()
    return total
