"""SurgFed: Fang et al., Language-guided Multi-Task Federated Learning for Surgical Video, arXiv 2603.09496.

Layers that select channels from a site's text (LCS, Eq. (2)) stay at the site. At the server each site attends to all
sites' changes, layer by layer (LHA, Eqs. (3) to (8), core/aggregators/language_guided.py).
"""

from typing import Literal

from shared_components.core.aggregators.language_guided import ITEM, Attention, LanguageGuided, Texts
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Aggregator, Local, Method, Requires, Server
from shared_components.core.partition import Role
from shared_components.core.partition_rules import modules
from shared_components.core.ranges import FromZero, Mode, Seed, Share
from shared_components.core.text.site_text import DEFAULT, EncoderKind, SiteText, Wording, if_it_has_an_indicator
from shared_components.networks.protocols import Remembers

MEMORY, DECODER = ("memory_attention", "memory_encoder", "object_pointer"), ("mask_decoder",)
AGGREGATED = {"both": (*MEMORY, *DECODER), "decoder": DECODER, "memory": MEMORY}


def build(
    *,
    mode: Mode = "corrected",
    aggregated: Literal["both", "decoder", "memory"] = "both",
    lha: bool = True,
    attention: Attention = "plain",
    texts: Texts = "own",
    psi: Share = 0.1,
    hyper_rate: FromZero = 1e-3,
    weight_decay: FromZero | None = None,
    text_encoder: EncoderKind = DEFAULT,
    text_wording: Wording = "task",
    lha_encoder: Literal["same", EncoderKind] = "same",
    seed: Seed = 0,
) -> Method:
    """Return SurgFed or one of its ablations; ablations without LCS need another `network`.

    Args:
        mode: ``corrected``, or ``as_released``: changes are gated before the attention, and psi decreases if the
            changes of other sites help.
        aggregated: Parts that the server aggregates: mask ``decoder``, ``memory`` modules, or ``both``. All other parts
            stay at the sites.
        lha: Aggregate these parts by attention; else by their mean (Table II, row 2, and Figure 3b).
        attention: ``plain``, ``cosine`` or ``mean``, see `language_guided.LanguageGuided`.
        texts: Texts that the gate of LHA reads: the sites' ``own`` texts, or ``shuffled`` or ``none`` as controls.
        psi: Initial weight of the other sites' changes. With a ``hyper_rate`` of 0 it stays constant; 0 then means
            local training of these parts.
        hyper_rate, weight_decay: Learning rate and weight decay of the server's Adam. The default decay is 0, and
            0.99 with ``as_released``.
        text_encoder: Encoder of the text that LCS reads (Table III), see `text.site_text`.
        text_wording: Wording of the text for both encoders, see `text.site_text`.
        lha_encoder: Encoder of the text that LHA reads (Table IV); ``same`` is the encoder of LCS.
        seed: Seed of the hypernetwork, and of ``random`` and ``gaussian`` text vectors.
    """
    released = mode == "as_released"
    decay = weight_decay if weight_decay is not None else 0.99 if released else 0.0
    attends = LanguageGuided(attention, texts, psi, hyper_rate, decay, seed, released)
    aggregator: Aggregator = attends if lha else WeightedMean()
    reads = lha and texts != "none"
    of_lha = SiteText(text_encoder if lha_encoder == "same" else lha_encoder, text_wording, seed)
    return Method(
        partition=modules(
            AGGREGATED[aggregated],
            what="surgfed: aggregated",
            inside=Role.MIXED if lha else Role.GLOBAL,
            outside=Role.LOCAL,
        ),
        server=Server(aggregator=aggregator, weighted_sum_only=not lha, trained=("gate/", "psi/") if lha else ()),
        local=Local(
            items={ITEM: of_lha.published} if reads else {},
            condition_on_site=if_it_has_an_indicator(SiteText(text_encoder, text_wording, seed)),
        ),
        requires=Requires(
            kinds=("segmentation", "depth"),
            network=Remembers,
            optional_items=frozenset({ITEM} if reads else ()),
            multi_task=True,
        ),
        about=About(
            label="SurgFed",
            paper="Fang et al., arXiv 2603.09496",
            idea="Hospitals share a video model that their texts guide; the server learns how much they follow others.",
            partition="memory modules and mask decoder MIXED, channel selection, text and depth head LOCAL",
            objective="task loss",
            aggregator="learned attention between sites' changes, gated by their texts",
            secure_sums="no: the server compares sites' changes"
            if lha
            else "yes: the server needs only the weighted sum",
        ),
    )
