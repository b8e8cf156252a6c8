"""pFedLA: Ma et al., Layer-wised Model Aggregation for Personalized Federated Learning, CVPR 2022 (arXiv 2205.03993).

Each site's hypernetwork mixes every layer of the network from all sites' layers (core/aggregators/hypernetwork.py).
PFedSIS applies the same hypernetwork only to its personal pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from shared_components.core.aggregators import hypernetwork as hn
from shared_components.core.method import About, Aggregation, Method, Models, Profile, Server, State, Update
from shared_components.core.partition import Partition, Role, Slice, TensorRule
from shared_components.core.ranges import FromZero, Mode
from shared_components.networks.parts import inside, parts_of, resolve


def build(*, mode: Mode = "corrected", hypernetwork_rate: FromZero = 5e-3, seed: hn.Seed = 0) -> Method:
    """Return pFedLA: every site's model is a mixture of all sites' models, layer by layer.

    Mode ``corrected`` moves a site's mixture in the direction of its training, ``as_released`` against it. ``seed`` is
    for the hypernetworks' initial weights.
    """
    return Method(
        partition=by_layer,
        server=Server(
            aggregator=LayerMixtures(hypernetwork_rate, released=mode == "as_released", seed=seed),
            trained=("hypernetwork/",),
        ),
        about=About(
            label="pFedLA",
            paper="Ma et al., CVPR 2022, arXiv 2205.03993",
            idea="For each hospital, a hypernetwork at the server mixes the hospitals' models layer by layer.",
            partition="all MIXED, in layers",
            aggregator="one hypernetwork per site mixes every layer",
            secure_sums="no: the hypernetworks need each site's layers",
        ),
    )


def by_layer(network: nn.Module) -> TensorRule:
    """Assign every tensor to a layer: an encoder stage, a block of a decoder, or all heads.

    A stage is its patch embedding, its blocks and its last norm. `networks.pvt_fpn.PvtFpn` has 21 layers: 4 stages,
    2 decoders of 4 lateral and 4 segmentation blocks, and the heads.
    """
    encoder, heads = (resolve(network, (part,), "pfedla") for part in ("encoder", "head"))
    heads |= frozenset(parts_of(network).get("head_appearance", ()))

    def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        if home := [path for path in encoder if inside(name, [path])]:
            child = name.removeprefix(f"{home[0]}.").partition(".")[0]
            stage = "".join(character for character in child if character.isdigit())  # patch_embed2 -> 2
            return (Slice(Role.MIXED, layer=f"{home[0]}.stage{stage}"),)
        if inside(name, heads):
            return (Slice(Role.MIXED, layer="heads"),)
        return (Slice(Role.MIXED, layer=".".join(name.split(".")[:3])),)

    return slices


@dataclass(frozen=True)
class LayerMixtures:
    """Train the hypernetworks and mix every layer; the state has the hypernetworks and every site's last weights."""

    rate: float
    released: bool
    seed: int

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        return hn.first_state(partition.mixed_layers, models, profiles, seed=self.seed)

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        state, mixed, report = hn.personal_step(
            state, partition.mixed_layers, models, updates, rate=self.rate, released=self.released
        )
        return Aggregation(state, Models(models.shared, mixed), report)
