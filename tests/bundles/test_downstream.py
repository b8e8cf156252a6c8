"""FL-EndoViT's downstream bundles: trained from pre-trained weights and scored."""

import json

import pytest
import torch
import yaml

from shared_components.data.splits import SEEN, seen_videos_entry
from shared_components.networks.bundle_config import weights_of
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.resnet_clips import ResNet50
from shared_components.scenes.site import write_site

SHORT = {"training#batch_size": 2, "training#rounds": 1, "training#epochs": 0, "training#iterations": 1}
USES = {
    "fl_endovit_clips": "macro_f1", "fl_endovit_phases": "f1", "fl_endovit_segmentation": "image_iou",
    "fl_endovit_triplets": "map",
}  # fmt: skip
RENDERED = ("fl_endovit_clips", "fl_endovit_segmentation")  # which a start cannot have seen
FROZEN = ("fl_endovit_segmentation",)  # the others train their encoder
SPLIT = {"train": ["VID01"], "validation": ["VID02", {"VID03": [0, 2]}], "test": ["VID04"]}  # few-shot; unequal lengths
SIZE = {"height": 64, "width": 64, "frames_per_video": 3}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Return the site.yaml by bundle; the site with labels is not marked as rendered."""
    folder = tmp_path_factory.mktemp("sites")
    masks = write_site(folder / "masks", look="rose", seed=1, videos={"train": 1, "validation": 1, "test": 1}, **SIZE)
    triplets = {"layout": "cholect45", "task": "triplets", "videos": {"train": 4}}
    labels = write_site(folder / "labels", look="rose", seed=2, **triplets, **SIZE)
    (labels.parent / "render.json").unlink()
    config = yaml.safe_load(labels.read_text()) | {"split": SPLIT}
    labels.write_text(yaml.safe_dump(config))
    grades = write_site(
        folder / "grades", look="rose", seed=3, layout="appendix300", task="classification", **SIZE,
        videos={"train": 2, "validation": 1, "test": 3},
    )  # fmt: skip
    phases = labels.with_name("phases.yaml")
    phases.write_text(yaml.safe_dump(config | {"task": "phases"}))
    return {
        "fl_endovit_clips": grades, "fl_endovit_segmentation": masks, "fl_endovit_triplets": labels,
        "fl_endovit_phases": phases, "fl_endovit_tecno": phases, "resnet_clips": grades,
    }  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return a checkpoint of FL-EndoViT's bundle with random weights."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("pretrained") / "mae.safetensors"
    notes = {"bundle": "fl_endovit", **seen_videos_entry({"cholec80_frames": ["video70"]})}
    save_weights(path, MaeVit().state_dict(), notes)
    return path


@pytest.fixture
def trained(run, sites, tmp_path):
    """Return a function that trains a bundle for one step; it returns the folder of its model."""

    def trained(bundle, start, **overrides):
        out = tmp_path / bundle
        options = {"site_config": str(sites[bundle]), "start": str(start), "output_dir": str(out)}
        run(bundle, "train", **options, **(SHORT | overrides))
        return out

    return trained


def test_resnet_50_is_trained_from_an_imagenet_file_and_scored(evaluated, sites, trained, tmp_path):
    torch.manual_seed(4)
    state = ResNet50(classes=1000).state_dict()
    torch.save(state, tmp_path / "resnet50.pth")
    small = {"training#iterations": 1, "training#learning_rate": 1e-6, "tasks#classification#frames": 2}
    model = trained("resnet_clips", tmp_path / "resnet50.pth", **small) / "model.safetensors"
    result = load_weights(model)
    torch.testing.assert_close(result["encoder.conv1.weight"], state["conv1.weight"], rtol=0, atol=1e-3)
    assert result["encoder.bn1.num_batches_tracked"] == 1 and result["sequence.head.weight"].shape == (6, 256)
    scores = evaluated("resnet_clips", sites["resnet_clips"], model, tmp_path / "out")
    assert 0 <= scores["macro_f1"]["mean"] <= 1


def of_encoder(path, like):
    return {n: value for n, value in load_weights(path).items() if n in like and not n.startswith("norm")}


@pytest.mark.parametrize("bundle", USES)
def test_a_use_begins_from_the_encoder_and_has_its_metric(evaluated, trained, pretrained, sites, tmp_path, bundle):
    options = {"network_def#trained_encoders": False} if bundle in FROZEN else {}
    options |= {"tasks#classification#frames": 3} if bundle == "fl_endovit_clips" else {}
    model = trained(bundle, pretrained, **options) / "model.safetensors"
    before = load_weights(pretrained)
    after = of_encoder(model, before)
    assert {name.partition(".")[0] for name in after} == {"cls_token", "pos_embed", "patch_embed", "blocks"}
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == (set() if bundle in FROZEN else set(after) - {"pos_embed"})
    notes, first = load_metadata(model), USES[bundle]
    own = {} if bundle in RENDERED else {"cholect45": ["VID01"]}  # those are rendered
    assert json.loads(notes[SEEN]) == {"cholec80_frames": ["video70"], **own}
    result = evaluated(bundle, sites[bundle], model, tmp_path / "out")
    assert result["metrics"][0]["name"] == first and 0 <= result[first]["mean"] <= 1 and result["frames"] == 3
    assert first in result.get("std", {first: "one answer a video"})


def test_the_second_stage_learns_by_the_features_of_the_first(evaluated, trained, pretrained, sites, tmp_path):
    first = trained("fl_endovit_phases", pretrained) / "best.safetensors"
    folder = trained("fl_endovit_tecno", first, **{"training#batch_size": 1})
    options, after = load_weights(first), load_weights(folder / "model.safetensors")
    assert all(torch.equal(value, options[name]) for name, value in after.items() if not name.startswith("sequence."))
    assert len(list(folder.glob("features/*/*.safetensors"))) == 3  # of the frames of one video
    result = evaluated("fl_endovit_tecno", sites["fl_endovit_tecno"], folder / "model.safetensors", tmp_path / "out")
    assert result["frames"] == 3 and 0 <= result["f1"]["mean"] <= 1
    assert (tmp_path / "out" / "videos.csv").read_text().splitlines()[1].startswith("VID04,")


def test_a_start_that_has_seen_the_test_is_refused(refusal, trained, pretrained, tmp_path, run, sites):
    start = tmp_path / "seen.safetensors"
    save_weights(start, load_weights(pretrained), seen_videos_entry({"cholec80": ["video04", "video09"]}))
    sentence = refusal(trained, "fl_endovit_triplets", start)
    assert sentence.startswith("seen.safetensors has seen 1 of the test's videos of cholect45 (VID04); start from")
    assert not (tmp_path / "fl_endovit_triplets").exists()
    assert {weights_of(bundle) for bundle in sites if bundle != "resnet_clips"} == {weights_of("fl_endovit")}
    assert weights_of("fl_endovit") == "fl_endovit" and weights_of("resnet_clips") == "resnet_clips"
    options = {"site_config": str(sites["fl_endovit_phases"]), "weights_of": "pvt_fpn"}
    sentence = refusal(run, "fl_endovit_phases", "train", **options)
    assert sentence.startswith("--weights_of has no effect, since the bundle's file names the weights")
