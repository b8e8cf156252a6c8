"""FedST: Fang et al., Spatio-temporal representation decoupling and enhancement, IEEE TMI 2026 (arXiv 2506.23759).

Sites keep the encoder's queries and the layers that select channels from their text (RSC). The server trains on
synthetic frames (SERQ). bundles/fedst/docs/README.md lists our own choices: our text of the paper lacks its formulas.
"""

from collections.abc import Sequence

from shared_components.common.arguments import between, one_of, true_or_false
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Local, Method, Requires, Server, ServerUpdate
from shared_components.core.rules import representation
from shared_components.core.serq import RATE, FineTuning, Quantification, check_beforehand
from shared_components.core.text.site_text import DEFAULT, KINDS, WORDINGS, SiteText, if_it_has_an_indicator
from shared_components.networks.protocols import Encodes

SYNTHETIC = ("quantification", "fine_tuning", "none")


def build(
    *,
    personal: Sequence[str] = ("queries",),
    personal_selection: bool = True,
    text_encoder: str = DEFAULT,
    text_wording: str = "sentence",
    synthetic: str = "quantification",
    batches: int = 100,
    pretraining: int = 1000,
    average: float = 0.9,
    descriptor_weight: float = 30.0,
    representation_weight: float = 300.0,
    rate: float = RATE,
    pretraining_rate: float = 1.0,
    descriptor_rate: float = 0.2,
    seed: int = 0,
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
    true_or_false("fedst", "personal_selection", personal_selection)
    one_of("fedst", "text_encoder", text_encoder, KINDS)
    one_of("fedst", "text_wording", text_wording, WORDINGS)
    one_of("fedst", "synthetic", synthetic, SYNTHETIC)
    between("fedst", "seed", seed, 0, whole=True)
    weights, rates = (descriptor_weight, representation_weight), (rate, pretraining_rate, descriptor_rate)
    updates: dict[str, ServerUpdate] = {  # building both checks all numbers
        "quantification": Quantification(batches, pretraining, average, *weights, *rates, who="fedst"),
        "fine_tuning": FineTuning(batches, rate, who="fedst"),
    }
    return Method(
        name="fedst",
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
