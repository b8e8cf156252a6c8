"""A site.yaml is read completely, or refused by file and key."""

from pathlib import Path

import pytest
import yaml

from shared_components.data.site import SiteError, VideoRange
from shared_components.data.site_file import load_site
from tests.data.conftest import write_yaml


def refusal(path: Path) -> str:
    """Load a bad site.yaml; return the error after the file's name, which it begins with."""
    with pytest.raises(SiteError) as error:
        load_site(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_every_key_is_read_or_has_its_default_and_the_file_names_the_site(make_site, tmp_path):
    plain = load_site(make_site())
    assert (plain.frame_interval, plain.text, plain.publish, plain.quarantine) == (1, "", ("style",), 0.0)
    assert (plain.task, plain.history, plain.rate) == ("", True, 2.0)
    changes = {"frame_interval": 2, "text": "porcine", "publish": ["style", "model"], "quarantine": 0.1}
    path = make_site(**changes, task="depth", history=False, rate=12.5)
    site = load_site(path)
    assert site == load_site(path.parent)  # the folder stands for its site.yaml
    assert (site.name, site.dataset, site.root, site.path) == ("hospital-a", "endovis2017", tmp_path / "data", path)
    assert site.classes == ("background", "shaft", "wrist", "clasper")
    assert site.split["train"] == (VideoRange("instrument_dataset_1"),)
    assert (site.frame_interval, site.text, site.quarantine) == (2, "porcine", 0.1)
    assert (site.task, site.history, site.rate, site.publish) == ("depth", False, 12.5, ("style", "model"))
    assert load_site(make_site(), name="site-1").name == "hospital-a"
    assert load_site(make_site(name=None), name="site-1").name == "site-1"
    assert load_site(make_site(name=None)).name == tmp_path.name


def test_a_video_is_cut_by_time_in_either_notation(make_site):
    as_list = {"train": [{"OP1": [0, 3]}], "test": [{"OP1": [3, 4]}, "OP2"]}
    as_mapping = {"train": {"OP1": [0, 3]}, "test": {"OP1": [3, 4]}}
    first = load_site(make_site("endovis2015_rigid", split=as_list)).split
    second = load_site(make_site("endovis2015_rigid", split=as_mapping)).split
    assert first["train"] == second["train"] == (VideoRange("OP1", 0, 3),)
    assert first["test"] == (VideoRange("OP1", 3, 4), VideoRange("OP2"))


@pytest.mark.parametrize("key", ["dataset", "root", "split"])
def test_a_required_key_is_asked_for(key, make_site):
    path = make_site()
    write_yaml(path, {**yaml.safe_load(path.read_text()), key: None})
    assert refusal(path).startswith(f"'{key}' is missing; add it")


def test_unknown_names_are_refused_with_the_known_names(make_site):
    message = refusal(make_site(split={"train": ["instrument_dataset_9"]}))
    assert message.startswith("unknown video in split 'train' 'instrument_dataset_9'; did you mean")
    assert message.endswith("'root' has: instrument_dataset_1, instrument_dataset_2, instrument_dataset_3")
    path = make_site()
    path.write_text(path.read_text().replace("endovis2017", "endovis17"))
    assert refusal(path).startswith("unknown dataset 'endovis17'; did you mean 'endovis2017'? known: ")
    message = refusal(make_site("endovis2015_rigid", classes="parts"))
    assert message.startswith("'classes' is 'parts', but endovis2015_rigid has 'shaft_manipulator'")
    assert message.endswith("write shaft_manipulator or foreground")
    message = refusal(make_site("scared", classes="foreground"))
    assert message == "'classes' is 'foreground', but scared has no label masks; leave it out"


@pytest.mark.parametrize(("changes", "beginning"), [
    ({"frame_intervall": 2}, "unknown key 'frame_intervall'; did you mean 'frame_interval'? known keys: dataset"),
    ({"split": {"valdiation": []}}, "unknown split 'valdiation'; did you mean 'validation'?"),
    ({"root": "absent"}, "'root' is "), ({"root": 3}, "'root' is 3; "),
    ({"classes": "part"}, "unknown class map 'part'; did you mean 'parts'?"),
    ({"frame_interval": 0}, "'frame_interval' is 0; "), ({"frame_interval": True}, "'frame_interval' is True; "),
    ({"frame_interval": 1.5}, "'frame_interval' is 1.5; "),
    ({"quarantine": 0.3}, "'quarantine' is 0.3; write a share of the frames from 0 to 0.2"),
    ({"quarantine": -0.1}, "'quarantine' is -0.1; "), ({"quarantine": "5%"}, "'quarantine' is '5%'; "),
    ({"quarantine": float("nan")}, "'quarantine' is nan; "),
    ({"publish": "style"}, "'publish' is 'style'; write a list"),
    ({"withhold": "scores"}, "'withhold' is 'scores'; write a list"),
    ({"withhold": ["score"]}, "unknown item in 'withhold' 'score'; did you mean 'scores'?"),
    ({"publish": ["styles"]}, "unknown item in 'publish' 'styles'; did you mean 'style'?"),
    ({"task": 5}, "'task' is 5; write text"), ({"history": "no"}, "'history' is 'no'; it is true or false"),
    ({"rate": 0}, "'rate' is 0; write the frame numbers per second"), ({"rate": float("inf")}, "'rate' is inf; "),
    ({"rate": float("nan")}, "'rate' is nan; "), ({"rate": True}, "'rate' is True; "),
    ({"text": 5}, "'text' is 5; write text"), ({"name": 5}, "'name' is 5; write text"),
    ({"split": ["instrument_dataset_1"]}, "'split' is ['instrument_dataset_1']; "),
    ({"split": {"train": "instrument_dataset_1"}}, "split 'train' is 'instrument_dataset_1'; "),
    ({"split": {"train": [1]}}, "unknown video in split 'train' 1; "),
    ({"split": {"train": [{"a": [0, 1], "b": [0, 1]}]}}, "split 'train' has "),
    ({"split": {"train": [{"instrument_dataset_1": [3, 3]}]}}, "split 'train' gives "),
    ({"split": {"train": [{"instrument_dataset_1": [0]}]}}, "split 'train' gives "),
    ({"split": {"train": [{"instrument_dataset_1": 3}]}}, "split 'train' gives "),
    ({"split": {"train": [{"instrument_dataset_1": [-1, 3]}]}}, "split 'train' gives "),
])  # fmt: skip
def test_a_bad_value_is_refused_by_its_key(changes, beginning, make_site):
    assert refusal(make_site(**changes)).startswith(beginning)


@pytest.mark.parametrize("split", [
    {"train": ["OP1"], "test": ["OP1"]}, {"train": [{"OP1": [0, 3]}], "test": [{"OP1": [2, 4]}]},
    {"train": ["OP1"], "test": [{"OP1": [2, 4]}]}, {"train": ["OP1", "OP1"]},
])  # fmt: skip
def test_frames_in_two_splits_are_refused(split, make_site):
    assert "share frames" in refusal(make_site("endovis2015_rigid", split=split))
    assert not VideoRange("a", 0, 3).overlaps(VideoRange("a", 3, 4))
    assert not VideoRange("a", 3, 4).overlaps(VideoRange("a", 0, 3))
    assert not VideoRange("a").overlaps(VideoRange("b")) and VideoRange("a", 2, 5).overlaps(VideoRange("a"))


@pytest.mark.parametrize("content", ["dataset: [", "- a list", "", "just words", "a: b: c"])
def test_a_file_that_is_missing_or_no_mapping_is_refused(content, tmp_path):
    assert refusal(tmp_path / "site.yaml").startswith("no such file")
    (tmp_path / "site.yaml").write_text(content)
    refusal(tmp_path / "site.yaml")


def test_the_sites_own_vectors_and_encoder_lie_beside_its_site_yaml_or_anywhere(make_site, tmp_path):
    plain = load_site(make_site())
    assert (plain.text_vectors, plain.text_encoder) == (None, None)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "own.safetensors").touch()
    for base in ("texts", str(tmp_path / "texts")):
        site = load_site(make_site(text_vectors=f"{base}/own.safetensors", text_encoder=base))
        assert site.text_vectors == tmp_path / "texts" / "own.safetensors"
        assert site.text_encoder == tmp_path / "texts"


@pytest.mark.parametrize(("key", "value", "sentence"), [
    ("text_vectors", "own.safetensors", "own.safetensors, which is not a file; make it with `surgfl text-vec"),
    ("text_vectors", "data.safetensors", "data.safetensors, which is not a file"),
    ("text_vectors", "own.npz", "'own.npz'; write a file of text vectors, such as my-vectors.safetensors"),
    ("text_vectors", "", "''; write a file of text vectors"),
    ("text_vectors", True, "True; write a file of text vectors"),
    ("text_vectors", ["own.safetensors"], "['own.safetensors']; write a file of text vectors"),
    ("text_encoder", "clip", "clip, which is not a folder; copy the encoder there"),
    ("text_encoder", "site.yaml", "site.yaml, which is not a folder"),
    ("text_encoder", "", "''; write the folder of a text encoder"),
    ("text_encoder", 1, "1; write the folder of a text encoder"),
])  # fmt: skip
def test_missing_vectors_and_encoders_are_refused(key, value, sentence, make_site, tmp_path):
    (tmp_path / "data.safetensors").mkdir()
    message = refusal(make_site(**{key: value}))
    assert message.startswith(f"'{key}' is ") and sentence in message
