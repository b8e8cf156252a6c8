"""`surgfl publish`: the hub's own library reads the model card, and MONAI loads the network from the folder."""

import json
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.core.shipped_weights import FACTS
from shared_components.core.task import module_names
from shared_components.weights.bundle_files.copies import PIPELINES, hub_metadata
from shared_components.weights.bundle_files.make import read_description
from tests.bundles.conftest import BUNDLES

NAME = "surgical_instrument_segmentation_pfedsis"
hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A bundle that shares another bundle's weights."""
    folder = tmp_path_factory.mktemp("to push")  # empty
    assert main(["publish", "pfedsis", "--to", str(folder)]) == 0
    return folder


def test_the_model_card_holds_the_scores_of_the_weights_by_domain(published):
    card = hub.ModelCard.load(published / "README.md")
    assert (card.data.license, card.data.library_name, card.data.pipeline_tag, card.data.model_name) == (
        "apache-2.0", "monai", "image-segmentation", NAME,
    )  # fmt: skip
    facts = json.loads((BUNDLES / "pvt_fpn" / FACTS).read_text())
    kinds = {r["where"] for r in facts["scores"]} - {"real"}
    families = {f"unseen {family} look" for family in ("surgery", "microscope", "flexible")}
    assert kinds == {"named look", "unseen look"} | families
    shown = [r for r in facts["scores"] if r["where"] in ("named look", "real")]
    expected = {f"{r['name']}, {r['classes']}": r["dice"]["mean"] for r in shown}
    again = hub.ModelCard(f"---\n{card.data.to_yaml()}\n---\n").data
    for data in (card.data, again):
        found = {result.dataset_name: result.metric_value for result in data.eval_results}
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=5e-5)
        assert len(found) == len(expected) + len(kinds) == len(data.eval_results)  # a mean of each kind of look
        real = {result.dataset_name for result in data.eval_results if result.dataset_type == "real-frames"}
        assert real == {name for name in expected if name.startswith(("EndoVis 2015 OP", "EndoVis 2017"))}
        marked = {result.dataset_name for result in data.eval_results if result.dataset_args}
        assert marked == {name for name in expected if name.startswith(("EndoVis 2015 OP1", "EndoVis 2015 OP2"))}
    assert "](../" not in card.content and "bundles/pfedsis/configs" not in card.content
    assert f"--config_file {NAME}/configs/train.yaml" in card.content and "# PFedSIS" in card.content


def test_every_kind_of_task_is_one_of_the_hubs_uses():
    assert PIPELINES.keys() == set(module_names("tasks"))
    facts = json.loads((BUNDLES / "surgfed" / FACTS).read_text())
    assert hub_metadata(read_description("surgfed"), facts)["pipeline_tag"] == "mask-generation"


@pytest.mark.parametrize(("bundle", "sentence"), [
    ("pvt", "publish: bundle 'pvt' is unknown; use one of fedst, "),
    ("fl_endovit_phases", "'fl_endovit_phases' ships no weights and starts from the weights of 'fl_endovit'; "),
    ("pvt_fpn", "full exists already; name a new folder"),
])  # fmt: skip
def test_what_cannot_be_published_is_said_in_one_sentence(bundle, sentence, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    to = tmp_path / ("full" if bundle == "pvt_fpn" else "new")
    assert main(["publish", bundle, "--to", str(to)]) == 2
    message = capsys.readouterr().err
    assert sentence in message and message.count("\n") == 1
    assert [path.name for path in Path(tmp_path).rglob("*")] == ["full", "mine.txt"]
