"""Layer-wise decomposition of the sites' changes (FedLD, Zeng et al., MICCAI 2024).

A layer's changes span a small space. Its principal directions, weighted by their singular values, are what
sites agree on; every site's change is rebuilt from its projections on them, at its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.core.aggregators.mean import in_site_order, mean_pieces
from shared_components.core.method import Aggregation, Models, State, StatelessStart, Update
from shared_components.core.partition import Partition

TINY = 1e-12
HISTORY = "history/"


def decomposed(changes: Tensor, *, keep: float = 0.8) -> Tensor:
    """Rebuild one layer's mean change from its principal directions.

    With G = changes, H = G G^T / m and its eigenvectors e_j: w_j = G^T e_j, turned so that most sites have a
    positive product with it; site k becomes sum over j of s_j / (sum of s) ||g_k|| p_kj / ||p_kj||, where
    p_kj is the projection of g_k on w_j; the result is the mean over the sites. The sum of s is over all m
    singular values, those of directions that are left out included: what is left out shortens the step. Only signs
    and lengths of projections count, so that directions of equal singular values are the only ambiguity.

    Args:
        changes: (m, d), one row per site, in site order.
        keep: Share of the m directions that is kept, rounded down, at least one.

    Returns:
        (d,) float64.
    """
    G = changes.to(torch.float64)
    m = len(G)
    values, vectors = torch.linalg.eigh(G @ G.T / m)  # ascending
    shares = values.clamp_min(0) / values.clamp_min(0).sum().clamp_min(TINY)  # of all m, as released
    count = max(1, int(keep * m))
    shares, vectors = shares.flip(0)[:count], vectors.flip(1)[:, :count]  # (k,), (m, k)
    directions = vectors.T @ G  # (k, d)
    products = G @ directions.T  # (m, k)
    turn = torch.where((products > 0).sum(0) * 2 < m, -1.0, 1.0).to(torch.float64)
    lengths = directions.norm(dim=1)
    units = directions * (turn / lengths.clamp_min(TINY))[:, None]
    # a projection on w_j divided by its length is +-w_j / ||w_j||; where it is zero there is none
    signs = torch.sign(products * turn) * (lengths > TINY) * (products.abs() > TINY * lengths)
    weights = (G.norm(dim=1)[:, None] * signs * shares).mean(0)  # (k,)
    return weights @ units


@dataclass(frozen=True)
class LayerwiseDecomposition(StatelessStart):
    """The mean in the first round, then every tensor moves by its decomposed change.

    The state is the history of changes, decayed by ``decay``: a tensor that has never moved is averaged.
    """

    keep: float = 0.8
    decay: float = 0.99

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        """Return the next shared model and the history."""
        updates = in_site_order(updates)
        mean = mean_pieces(updates, models.shared)
        shared, history = {}, {}
        for name, before in models.shared.items():
            if not before.is_floating_point():
                shared[name] = mean[name]
                continue
            past = state.get(HISTORY + name)
            if past is None or len(updates) == 1 or not bool(past.any()):
                shared[name] = mean[name]
                moved = mean[name].to(torch.float64) - before.to(torch.float64)
            else:
                # m changes (...) -> (m, d) -> (d,) -> (...)
                rows = [(u.pieces[name].to(torch.float64) - before.to(torch.float64)).flatten() for u in updates]
                moved = decomposed(torch.stack(rows), keep=self.keep).view(before.shape)
                shared[name] = (before.to(torch.float64) + moved).to(before.dtype)
            kept = torch.zeros_like(moved) if past is None else past.to(torch.float64)
            history[HISTORY + name] = (self.decay * kept + moved).to(before.dtype)
        return Aggregation(history, Models(shared, models.mixed))
