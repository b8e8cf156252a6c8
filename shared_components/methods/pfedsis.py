"""PFedSIS: Xu et al., Personalizing Federated Instrument Segmentation with Visual Trait Priors, IEEE TBME 2025.

Algorithm 1. Mode `corrected` follows the paper's equations, mode `as_released` the released code. The card
(bundles/pfedsis/docs/README.md) lists the differences and their measured effects.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from shared_components.core import exchange
from shared_components.core.aggregators import hypernetwork as hn
from shared_components.core.aggregators.mean import in_site_order, mean_pieces
from shared_components.core.aggregators.site_weights import Scale, similarity_mean
from shared_components.core.exchange import Aggregation, Extras, Models, Profile, State, Update
from shared_components.core.losses import appearance_loss, consistency_loss, mix_style, sample_style_weights
from shared_components.core.method import About, Context, GraphCut, Local, Method, Requires, Server, Term, task_term
from shared_components.core.partition import Partition, Pieces, Role, Slice, TensorRule, cut
from shared_components.core.ranges import AboveZero, Count, FromZero, Mode, ShareAboveZero
from shared_components.core.task import Batch
from shared_components.networks.protocols import TwoPaths, two_paths
from shared_components.networks.pvt_v2 import HEADS

Part = Literal["decoder", "q", "k", "v"]
PLACES: dict[Part, tuple[str, str]] = {  # personal part: (prefix, infix) of its tensor names
    "decoder": ("decoder_personal.", "."),
    "q": ("encoder.", ".attn.q."),
    "k": ("encoder.", ".attn.kv."),
    "v": ("encoder.", ".attn.kv."),
}
PersonalParts = Annotated[Sequence[Part], Meta(description=f"write a list of any of {', '.join(PLACES)}")]


def build(
    *,
    mode: Mode = "corrected",
    personal: PersonalParts = tuple(PLACES),
    head_aligned: bool = False,
    ape: bool = True,
    sge: bool = True,
    sensitivity_images: Count = 64,
    sensitivity_scale: Scale = "raw",
    sensitivity_temperature: AboveZero = 1.0,
    cross_style_share: ShareAboveZero = 1.0,
    hypernetwork_rate: FromZero = 5e-3,
    seed: hn.Seed = 0,
) -> Method:
    """Return PFedSIS or one of the ablations of Tables III and IV.

    Args:
        mode: ``corrected`` or ``as_released``.
        personal: GPD: personal parts among the decoder and the query, key and value rows (Table IV).
        head_aligned: Split q, k and v between attention heads as in Eq. (2); otherwise at half of the rows.
        ape: Appearance regulation and hypernetworks (Table III); without them personal weights are LOCAL.
        sge: Cross-style consistency and shape-similarity update (Table III); without them, FedAvg's mean.
        sensitivity_images: Number of training frames in Eq. (13), sampled in each round.
        sensitivity_scale: ``raw`` as published, or ``relative`` (see core/aggregators/site_weights.py).
        sensitivity_temperature: Temperature of the softmax of Eq. (14); 1 as published.
        cross_style_share: Share of every batch that is style-distorted for Eq. (12); 1 as published.
        hypernetwork_rate: Learning rate of Eqs. (8) and (9).
        seed: Seed of the hypernetworks' initial weights.
    """
    if ape and "decoder" not in personal:
        raise ValueError("pfedsis: ape needs a personal decoder for its appearance head; add 'decoder' to 'personal'")
    released, own = mode == "as_released", Role.MIXED if ape else Role.LOCAL
    return Method(
        partition=Disentanglement(tuple(personal), head_aligned=head_aligned, role=own),
        server=Server(
            aggregator=PersonalisedAggregator(
                ape, sge, released, sensitivity_scale, sensitivity_temperature, rate=hypernetwork_rate, seed=seed
            ),
            trained=("hypernetwork/",) if ape else (),
        ),
        local=Local(
            objective=Objective(ape=ape, sge=sge, released=released, share=cross_style_share),
            random_inputs=StyleWeights(1.0 if released else cross_style_share) if sge else None,
            measure=Sensitivity(released) if sge else None,
            measure_images=sensitivity_images,
            extras={"sensitivity": exchange.Extra(_check_sensitivity, exchange.shapes_of_shared)} if sge else {},
        ),
        requires=Requires(kinds=("segmentation",), network=TwoPaths, items=frozenset({"style"} if sge else ())),
        about=About(
            label="PFedSIS",
            paper="Xu et al., IEEE TBME 2025, doi 10.1109/TBME.2025.3526667",
            idea="Each hospital gets its own mixture of attention weights and of one decoder; the rest is shared.",
            partition="half of the q, k, v rows, one of two decoders and its heads MIXED, rest GLOBAL",
            objective="segmentation loss; appearance regulation (MIXED); cross-style consistency (GLOBAL)",
            aggregator="MIXED: one hypernetwork per site; GLOBAL: softmax of sensitivities",
            secure_sums="no: the hypernetworks need each site's MIXED weights",
        ),
    )


@dataclass(frozen=True)
class Disentanglement:
    """GPD (Section III-B): half of the q, k, v rows and the second decoder are personal, the rest is GLOBAL.

    Global rows come first, as in the released code. ``head_aligned`` splits between heads: floor(h/2) of a stage's h
    heads are personal, so stage 1 with its single head has no personal head.
    """

    personal: tuple[Part, ...]
    head_aligned: bool
    role: Role

    def __call__(self, network: nn.Module) -> TensorRule:
        names = list(network.state_dict())
        for part in self.personal:
            prefix, infix = PLACES[part]
            if not any(name.startswith(prefix) and infix in name for name in names):
                raise ValueError(
                    f"pfedsis: personal contains {part!r}, but {type(network).__name__} has no {prefix}*{infix}*; "
                    "use the network of the bundle pfedsis"
                )
        return self._slices

    def _slices(self, name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        top, _, rest = name.partition(".")
        if top == "head_appearance" or (top == "head_personal" and "decoder" in self.personal):
            return (Slice(self.role, layer=top),)
        if top == "decoder_personal" and "decoder" in self.personal:
            return (Slice(self.role, layer=".".join(name.split(".")[:3])),)
        if top == "encoder" and ".attn.q." in name:
            return self._rows(tensor, ("q",), rest)
        if top == "encoder" and ".attn.kv." in name:
            return self._rows(tensor, ("k", "v"), rest)
        return (Slice(Role.GLOBAL),)

    def _rows(self, tensor: Tensor, parts: tuple[str, ...], rest: str) -> list[Slice]:
        stage = rest.partition(".")[0]  # block1 ... block4
        width = tensor.shape[0] // len(parts)  # rows are [Q], or [K, V], of `width` each
        shared, number = width // 2, int(stage.removeprefix("block"))
        if self.head_aligned:
            heads = HEADS[number - 1]
            shared = (heads - heads // 2) * (width // heads)
        slices: list[Slice] = []
        for number, part in enumerate(parts):
            start, stop = number * width, (number + 1) * width
            middle = start + shared if part in self.personal else stop
            slices.append(Slice(Role.GLOBAL, start, middle))
            if middle < stop:
                slices.append(Slice(self.role, middle, stop, layer=f"encoder.{stage}"))
        return slices


@dataclass(frozen=True)
class Objective:
    """Step 3 of Algorithm 1: L_seg trains both halves, L_ar the personal half, L_csc the global half."""

    recordable: ClassVar[bool] = True
    ape: bool
    sge: bool
    released: bool
    share: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        if not (self.ape or self.sge):
            return [task_term(network, batch, context)]
        paths = two_paths(network, "pfedsis")
        if self.released:
            return self._released(paths, batch, context)
        image, label = batch["image"], batch["label"]
        # both backward passes share the graph from the feature maps to the decoders
        shared, own = ([GraphCut.cut(half) for half in halves] for halves in paths.encode(image))
        parts = paths.decode([point.twin for point in shared], [point.twin for point in own])
        terms = [Term("segmentation", context.task.loss(parts["pred"], batch), cuts=(*shared, *own))]
        if self.ape:  # Eq. (5)
            terms.append(Term("appearance", appearance_loss(parts["restored"], image), Role.MIXED, tuple(own)))
        if self.sge:
            weights = StyleWeights(self.share).of(batch, context)
            logits = paths.forward_global(_cross_style(image[: len(weights)], weights, context))  # Eqs. (10), (11)
            terms.append(Term("consistency", consistency_loss(logits, label[: len(weights)]), Role.GLOBAL))  # Eq. (12)
        return terms

    def _released(self, network: TwoPaths, batch: Batch, context: Context) -> list[Term]:
        """Return (L_seg + L_seg_mix + L_res + L_res_mix) / 2; every term trains all parameters."""
        images = [batch["image"]]
        if self.sge:
            images.append(_cross_style(batch["image"], StyleWeights(1.0).of(batch, context), context))
        terms: list[Term] = []
        for suffix, image in zip(("", "_mixed"), images, strict=False):
            parts = network.forward_parts(image)
            terms.append(Term(f"segmentation{suffix}", context.task.loss(parts["pred"], batch) / 2))
            if self.ape:
                terms.append(Term(f"appearance{suffix}", appearance_loss(parts["restored"], image) / 2))
        return terms


@dataclass(frozen=True)
class StyleWeights:
    """Random weights of Eq. (10) for a share of a batch, "style_weights" (B, K) of K sites."""

    share: float

    def __call__(self, batch_size: int, context: Context, generator: torch.Generator) -> dict[str, Tensor]:
        count = max(1, round(self.share * batch_size))
        return {"style_weights": sample_style_weights(count, len(_styles(context)), generator)}

    def of(self, batch: Batch, context: Context) -> Tensor:
        """Return a batch's weights; a batch that was not drawn with them gets them now."""
        drawn = batch if "style_weights" in batch else self(len(batch["image"]), context, context.generator)
        return drawn["style_weights"]


def _styles(context: Context) -> list:
    styles = context.items.get("style")
    if not styles:
        raise ValueError("pfedsis with sge needs every site's style; publish 'style' in site.yaml or switch sge off")
    return styles


def _cross_style(image: Tensor, weights: Tensor, context: Context) -> Tensor:
    styles = _styles(context)
    # K sites of (mean, deviation) of 3 channels: (K, 2, 3)
    table = context.once("styles", lambda: torch.tensor([style[:2] for style in styles], device=image.device))
    means, deviations = table.unbind(1)
    return mix_style(image, means, deviations, context.site, weights.to(image.device))


@dataclass(frozen=True)
class Sensitivity:
    """Eq. (13): mean over images of |d/d theta_G  mean(x_G^2)|, where x_G are the logits of the global path.

    The squared norm is a mean over pixels and classes, as in the released code: a sum over a third of a million pixels
    would make the softmax of Eq. (14) one-hot. The absolute value also follows the released code, and the text ("how
    sensitive predictions are to changes"). The released code computes the norm per batch and distorts the style of half
    of the batches.
    """

    released: bool

    def __call__(self, network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition) -> Extras:
        paths, parameters = two_paths(network, "pfedsis"), dict(network.named_parameters())
        tensors = list(dict.fromkeys(p.tensor for p in partition.with_roles(Role.GLOBAL).values()))
        totals = {name: torch.zeros_like(parameters[name]) for name in tensors if name in parameters}
        was_training, count = network.training, 0
        network.eval()
        for image in self._images(batches):
            energy = paths.forward_global(image).square().mean()  # ||p_G||^2
            if self.released:  # an undistorted image counts twice
                distorted = bool(torch.rand((), generator=context.generator) < 0.5)
                other = image
                if distorted:
                    weights = sample_style_weights(len(image), len(_styles(context)), context.generator)
                    other = _cross_style(image, weights, context)
                energy = energy + paths.forward_global(other).square().mean()
            gradients = torch.autograd.grad(energy, [parameters[n] for n in totals], allow_unused=True)
            for name, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    totals[name] += gradient.abs()
            count += 1
        network.train(was_training)
        means = {name: total / max(count, 1) for name, total in totals.items()}
        measured = Partition(tuple(piece for piece in partition if piece.tensor in means))
        return {"sensitivity": cut(means, measured, Role.GLOBAL)}

    def _images(self, batches: Iterable[Batch]) -> Iterable[Tensor]:
        for batch in batches:
            yield from [batch["image"]] if self.released else batch["image"].split(1)


def _check_sensitivity(group: Pieces, shared: Pieces) -> None:
    exchange.like_shared(group, shared)
    if any(value.device.type != "meta" and bool((value < 0).any()) for value in group.values()):
        raise ValueError("it has negative values; Eq. (13) is a mean of absolute gradients")


@dataclass(frozen=True)
class PersonalisedAggregator:
    """Steps 5 and 6 of Algorithm 1; the state contains the hypernetworks and every site's last personal pieces."""

    ape: bool
    sge: bool
    released: bool
    scale: Scale
    temperature: float
    rate: float
    seed: int

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        return hn.first_state(partition.mixed_layers if self.ape else {}, models, profiles, seed=self.seed)

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = in_site_order(updates)
        layers = partition.mixed_layers if self.ape else {}
        report: dict[str, Any] = {"entropy": {}}
        mixed = models.mixed
        if layers:
            # Eqs. (6) to (9): one hypernetwork per site
            state, mixed, report = hn.personal_step(
                state, layers, models, updates, rate=self.rate, released=self.released
            )
        if self.sge:
            names, temperature = list(models.shared), self.temperature
            # Eqs. (14), (15): the weight of every element is a softmax of sensitivities over sites
            shared, entropy = similarity_mean(updates, names, scale=self.scale, temperature=temperature)
            other = "relative" if self.scale == "raw" else "raw"  # only reported
            report["entropy"] |= {"sensitivity": entropy[self.scale], f"sensitivity_{other}": entropy[other]}
        else:
            shared = mean_pieces(updates, models.shared)
        return Aggregation(state, Models(shared, mixed), report)
