"""FedST: Fang et al., Spatio-temporal representation decoupling and enhancement, IEEE TMI 2026 (arXiv 2506.23759).

Sites keep the encoder's queries and the layers that select channels from their text (RSC). The server trains on
synthetic frames (SERQ). bundles/fedst/docs/README.md lists our own choices: our text of the paper lacks its formulas.
"""

from typing import Annotated, Literal

from msgspec import Meta

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Local, Method, Requires, Server, ServerUpdate
from shared_components.core.partition_rules import representation
from shared_components.core.ranges import AboveZero, Count, CountFromZero, FromZero, Names, Share, ShareBelowOne
from shared_components.core.serq import RATE, FineTuning, Quantification, check_beforehand
from shared_components.core.text.site_text import DEFAULT, EncoderKind, SiteText, Wording, if_it_has_an_indicator
from shared_components.networks.protocols import Encodes


def build(
    *,
    personal: Names = ("queries",),
    personal_selection: bool = True,
    text_encoder: EncoderKind = DEFAULT,
    text_wording: Wording = "sentence",
    synthetic: Literal["quantification", "fine_tuning", "none"] = "quantification",
    batches: Count = 100,
    pretraining: CountFromZero = 1000,
    average: ShareBelowOne = 0.9,
    descriptor_weight: FromZero = 30.0,
    representation_weight: FromZero = 300.0,
    rate: AboveZero = RATE,
    pretraining_rate: AboveZero = 1.0,
    descriptor_rate: Share = 0.2,
    seed: Annotated[int, Meta(ge=0, description="it is a whole number, at least 0")] = 0,
) -> Method:
    """Return FedST or one of its ablations; ablations without the temporal layer or the text need another `network`.

    Args:
        personal: Parts that stay at the sites, Eqs. (5) and (6) and Tables 5 and 6, see `rules.representation`.
        personal_selection: Keep the layers that select channels at the sites, too.
        text_encoder: Encoder of the site's text, Eq. (7) and Table 7, see `text.site_text`.
        text_wording: Part of the text that is encoded, see `text.site_text`.
        synthetic: Server training on synthetic frames: ``quantification`` is SERQ, ``fine_tuning`` trains the averaged
            model on them (Fig. 5), and ``none`` needs no data at the server.
        batches, pretraining, average, descriptor_weight, representation_weight, pretraining_rate, descriptor_rate: See
            `serq.Quantification`.
        rate: Server learning rate as a multiple of the job's; our text of the paper lacks it.
        seed: Seed of ``random`` and ``gaussian`` text vectors.
    """
    weights, rates = (descriptor_weight, representation_weight), (rate, pretraining_rate, descriptor_rate)
    updates: dict[str, ServerUpdate] = {
        "quantification": Quantification(batches, pretraining, average, *weights, *rates),
        "fine_tuning": FineTuning(batches, rate),
    }
    return Method(
        partition=representation(personal, selection=personal_selection, what="fedst: personal"),  # Eq. (5)
        server=Server(
            aggregator=WeightedMean(),  # Eq. (6)
            update=updates.get(synthetic),  # Eqs. (10) to (12)
            check=check_beforehand,
            weighted_sum_only=True,
        ),
        local=Local(condition_on_site=if_it_has_an_indicator(SiteText(text_encoder, text_wording, seed))),
        requires=Requires(kinds=("segmentation",), network=None if synthetic == "none" else Encodes),
        about=About(
            label="FedST",
            paper="Fang et al., IEEE TMI 2026",
            idea="Hospitals keep weights for their images and text; the server also trains on synthetic frames.",
            partition="encoder queries, channel selection and text vector LOCAL, rest GLOBAL",
            objective="cross-entropy and Dice",
            aggregator="sample-weighted mean, then SERQ: training at the server on synthetic frames",
            secure_sums="yes: the server needs only the weighted sum, also for SERQ",
        ),
    )
