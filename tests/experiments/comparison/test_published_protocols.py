"""At the scale `paper` every preset has the network, size, rounds and optimiser of its paper, and the paper's start."""

import re

import pytest
import torch
from transformers import Sam2VideoModel

from shared_components.core.card import Card
from shared_components.core.initial_weights import load_initial_weights
from shared_components.experiments.comparison.presets import PRESETS
from shared_components.experiments.comparison.surgfed_presets import SURGFED_TABLES
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import CheckpointError
from shared_components.networks.network_class import network_class
from shared_components.networks.parts import inside
from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration
from tests.experiments.comparison.conftest import runs_of
from tests.networks.conftest import TOY
from tests.networks.test_sam2_checkpoint import published

LOW, HIGH = (224, 224), (256, 448)
PFEDSIS = {("PvtFpn", None, (512, 640), 200, 8, "100 steps", "adamw", 5e-4)}
FEDST = {(kind, None, (512, 640), 300, 2, "100 steps", "adamw", 1e-4) for kind in ("PvtFpnClips", "PvtFpn")}
MAE = {("MaeVit", "base", LOW, 15, 256, "1 epoch", "adamw", 1.5e-3)}
SEGMENTATION = {("VitDpt", "base", size, 10, 64, "1 epoch", "adamw", 5e-4) for size in (LOW, HIGH)}
TRIPLETS = {("VitFrames", "base", LOW, 10, 32, "1 epoch", "adamw", 1e-3)}
STAGES = {
    ("VitFrames", "base", LOW, 15, 128, "1 epoch", "adamw", 5e-4),
    ("VitClips", "base", LOW, 15, 1, "1 epoch", "adamw", 7e-5),
}
CLIPS = {("VitClips", "base", LOW, 40, 16, "1 epoch", "sgd", 5e-3)}
PROTOCOLS = {  # network, its size, input, rounds, batch, length of a round, optimiser and its rate
    "pfedsis": PFEDSIS,
    "fl-endovit-aggregation": PFEDSIS,  # PFedSIS's network, as in the title
    "fl-endovit-table1": MAE, "fl-endovit-table2": SEGMENTATION, "fl-endovit-table3": TRIPLETS,
    "fl-endovit-table4": STAGES, "fl-endovit-table5": CLIPS, "fl-endovit-table6-segmentation": SEGMENTATION,
    "fl-endovit-table6-triplets": TRIPLETS, "fl-endovit-table6-phases": STAGES, "fl-endovit-table7": MAE,
    "fl-endovit-table10": CLIPS | {("ResNetClips", None, LOW, 40, 16, "1 epoch", "sgd", 5e-3)},
    "fl-endovit-table11": CLIPS, "fedsurg": CLIPS, "fedst": FEDST,
    "surgfed": {("Sam2Clips", "small", (512, 512), 100, 1, "3 epochs", "adamw", 1e-4)},  # without decay: Adam
}  # fmt: skip
NEW_IN_2_1 = ("temporal_positional_encoding_projection_layer", "occlusion_spatial_embedding_parameter")
OWN_ROUNDS = {"fedst-figure6"}  # its rows communicate more or less often
TWICE = {"fedst-figure5", "fedst-figure7"}  # rows with synthetic frames have twice the steps


def trained_runs(name):
    return [run for run in runs_of(name) if run.variant.trains]


def protocol_of(run):
    bundle, training = run.open_bundle(), run.settings()
    network = network_class(bundle.network).__name__, bundle.network.get("architecture")
    count, unit = (training.epochs, "epoch") if training.epochs else (training.iterations, "step")
    size, length = (training.height, training.width), f"{count} {unit}{'s' * (count > 1)}"
    return *network, size, run.rounds, training.batch_size, length, training.optimizer, training.learning_rate


@pytest.mark.parametrize("name", sorted(set(PRESETS) - OWN_ROUNDS))
def test_every_preset_has_its_papers_protocol(name):
    expected = max((key for key in PROTOCOLS if name.startswith(key)), key=len)
    protocols = {protocol_of(run) for run in trained_runs(name)}
    if name in TWICE:
        protocols = {(*row[:5], row[5].replace("200", "100"), *row[6:]) for row in protocols}
    published = PROTOCOLS[expected]
    assert protocols == published or (expected == "fedst" and protocols and protocols < published)


@pytest.mark.parametrize("name", SURGFED_TABLES)
def test_surgfeds_network_at_that_scale_is_sam2_small_for_frames_of_512(name):
    for run in trained_runs(name):
        network, training = run.open_bundle().network, run.settings()
        assert network["size"] == training.height == 512 and training.weight_decay == 0
    with torch.device("meta"):
        model = Sam2VideoModel(configuration(ARCHITECTURES[network["architecture"]], side=512, dropout=0.1))
    numbers = {name: weights.numel() for name, weights in model.named_parameters()}
    assert round(sum(n for name, n in numbers.items() if not inside(name, NEW_IN_2_1)) / 1e6, 2) == 46.04


# ---- initial weights


@pytest.fixture
def at_paper_scale(planned):
    """Return a function that plans a table of SurgFed at the scale `paper`, without sites."""
    return lambda *words, name="surgfed-table2": planned("--preset", name, "--scale", "paper", *words)[1]


@pytest.mark.parametrize("name", [*SURGFED_TABLES, "fedsurg"])
def test_without_published_weights_nothing_begins(at_paper_scale, name):
    begins = re.escape(f"{PRESETS[name].title}: --scale paper begins from ")
    with pytest.raises(ValueError, match=rf"^{begins}.* such as .*; name the file by --start$"):
        at_paper_scale(name=name)
    with pytest.raises(CheckpointError, match=r"nowhere/sam2\.pt does not exist"):
        at_paper_scale("--start", "/nowhere/sam2.pt", name=name)


def test_the_shipped_weights_are_of_another_network(at_paper_scale):
    with pytest.raises(CheckpointError, match=r"is SAM2 cpu, but the network is small; choose architecture: cpu$"):
        at_paper_scale("--start", "rendered")


@pytest.fixture
def narrow_small(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "small", TOY)


@pytest.mark.parametrize("layout", ["meta", "library"])
def test_every_row_begins_from_the_named_file(at_paper_scale, narrow_small, tmp_path, layout):
    path = str(published(tmp_path, layout))
    runs = at_paper_scale("--start", path)
    assert {(run.start, run.start_file) for run in runs} == {("file", path)}
    assert len(runs) == len(PRESETS["surgfed-table2"].variants)


def test_the_published_weights_reach_the_network_that_a_row_trains(at_paper_scale, narrow_small, tmp_path):
    run = next(run for run in at_paper_scale("--start", str(published(tmp_path))) if run.variant.label == "SurgFed")
    bundle = run.open_bundle()
    network = weightless(bundle.network).to_empty(device="cpu")
    fresh = load_initial_weights(
        network, run.start, card=Card("segmentation"), bundle=bundle.name, file=run.start_weights
    )["fresh"]
    assert {name.partition(".")[0] for name in fresh} == {"depth_head", "selection", "indicator"}
    given = torch.load(run.start_file, weights_only=True)["model"]
    assert torch.equal(network.no_memory_embedding, given["no_mem_embed"])
    assert torch.equal(network.mask_decoder.conv_s0.weight, given["sam_mask_decoder.conv_s0.weight"])
