"""Weights survive a round trip, and a wrong file is refused in one sentence."""

import math
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from shared_components.core.trained_model import input_size
from shared_components.networks import checkpoints
from shared_components.networks.checkpoints import CheckpointError, load_metadata, load_weights, save_weights
from shared_components.networks.pvt_fpn import PvtFpn


def test_weights_and_metadata_survive_a_round_trip(tmp_path):
    path = tmp_path / "deep" / "model.safetensors"
    state = {"a": torch.tensor([1.0, 2.0]), "b": torch.arange(6).reshape(2, 3).t()}
    save_weights(path, state, {"round": "3"})
    assert all(torch.equal(value, state[name]) for name, value in load_weights(path).items())
    assert load_metadata(path) == {"round": "3"}
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, {"a": torch.ones(1)})
    shared = torch.ones(3)
    with pytest.raises(RuntimeError):
        save_weights(path, {"a": shared, "b": shared})
    assert load_weights(path)["a"].tolist() == [1.0]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("value", "words"), [
    (nn.Linear(1, 1), "other (objects|data) than tensors"),  # its code is not run
    ({"epoch": 3}, "contains no state dict"), ({1: torch.zeros(2)}, "contains no state dict"),
    ({"weight": torch.eye(3).to_sparse()}, r"a.pt (has|contains) "),
    ({"weight": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, r"a.pt (has|contains) "),
    ({"weight": torch.empty(3, device="meta")}, r"a.pt (has|contains) "),
], ids=["code", "numbers", "names", "sparse", "quantised", "meta"])  # fmt: skip
def test_a_file_of_anything_but_named_dense_tensors_is_refused(value, words, tmp_path):
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=words):
        load_weights(tmp_path / "a.pt")


def test_a_checkpoint_of_another_network_is_refused_by_its_first_keys(tmp_path):
    path = tmp_path / "other.safetensors"
    save_weights(path, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)).state_dict())
    with pytest.raises(CheckpointError) as error:
        checkpoints.load_into(PvtFpn(), path)
    message = str(error.value)
    assert f"checkpoint {path} is a checkpoint of another network than PvtFpn" in message
    assert "lacks encoder.patch_embed1.proj.weight" in message and "has 0.bias, 0.weight, 1.bias and 3 more" in message
    assert len(message) < 500 and "\n" not in message


def saved_state(path: Path, *, more=None, **arguments) -> dict[str, torch.Tensor]:
    """Save a `PvtFpn` of another seed, with further or changed tensors."""
    torch.manual_seed(1)
    state = PvtFpn(**arguments).state_dict() | (more or {})
    save_weights(path, state)
    return state


@pytest.mark.parametrize("saved_head", [True, False])
def test_a_head_that_only_training_uses_may_be_missing_in_the_network_or_in_the_checkpoint(tmp_path, saved_head):
    path, network = tmp_path / "a.safetensors", PvtFpn(appearance_head=not saved_head)
    saved = saved_state(path, appearance_head=saved_head)
    own = {name: value.clone() for name, value in network.state_dict().items()}
    checkpoints.load_into(network, path)
    assert all(torch.equal(value, saved.get(name, own[name])) for name, value in network.state_dict().items())


@pytest.mark.parametrize(("saved", "network", "words"), [
    ({"out_channels": 3}, {"out_channels": 4}, "trained for 3 classes and the site has 4, background included"),
    (
        {"appearance_head": True, "more": {"head_appearance.bias": torch.zeros(4)}},
        {"appearance_head": True},
        r"head_appearance\.bias is \[4\] and should be \[3\]",
    ),
    ({"more": {"head_appearance2.bias": torch.zeros(3)}}, {}, r"it has head_appearance2\.bias$"),
], ids=["classes", "a head that both have", "a head that no network declares"])  # fmt: skip
def test_other_weights_of_the_same_network_are_refused(saved, network, words, tmp_path):
    saved_state(tmp_path / "a.safetensors", **saved)
    with pytest.raises(CheckpointError, match=words) as error:
        checkpoints.load_into(PvtFpn(**network), tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


def test_a_pt_file_keeps_its_header_and_is_a_plain_state_dict_to_torch(tmp_path):
    path = tmp_path / "deep" / "model.pt"
    checkpoints.save_pt(path, {"a": torch.tensor([1.5]).half(), "n": torch.tensor(3)}, {"height": "64"})
    state = torch.load(path, weights_only=True)
    assert list(state) == ["a", "n"] and state["a"].dtype == torch.float16
    assert load_metadata(path) == {"height": "64"} and load_weights(path)["a"].dtype == torch.float32
    first = path.read_bytes()
    checkpoints.save_pt(path, {"a": torch.tensor([1.5]).half(), "n": torch.tensor(3)}, {"height": "64"})
    assert path.read_bytes() == first and [file.name for file in path.parent.iterdir()] == ["model.pt"]


def test_an_export_has_the_header_and_weights_in_full_precision(tmp_path):
    state = {"a": torch.tensor([0.5, 2.0]).half(), "n": torch.tensor(3)}
    save_weights(tmp_path / "model.safetensors", state, {"bundle": "fedst"})
    checkpoints.export_pt(tmp_path / "model.safetensors", tmp_path / "model.pt")
    assert load_metadata(tmp_path / "model.pt") == {"bundle": "fedst"}
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["a"].dtype == torch.float32 and state["a"].tolist() == [0.5, 2.0]
    assert state["n"].dtype == torch.int64


def test_a_pt_file_of_compressed_records_is_refused(tmp_path):
    checkpoints.save_pt(tmp_path / "model.pt", {"a": torch.zeros(100_000)}, {"height": "64"})
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(tmp_path / "model.pt") as whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for name in whole.namelist():
            out.writestr(name, whole.read(name))
    for read in (load_metadata, load_weights):
        with pytest.raises(CheckpointError, match=r"packed\.pt is damaged"):
            read(packed)


def test_other_pt_files_have_no_header_and_a_damaged_one_is_refused(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "plain.pt")
    torch.save({"a": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert load_metadata(tmp_path / "plain.pt") == load_metadata(tmp_path / "old.pt") == {}
    for name in ("missing.pt", "missing.safetensors"):
        with pytest.raises(CheckpointError, match=rf"checkpoint .*{name} does not exist"):
            load_metadata(tmp_path / name)
    for text in ("[1]", "{", "null"):
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("archive/extra/surgfl.json", text)
        with pytest.raises(CheckpointError, match=r"model\.pt is damaged"):
            load_metadata(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_a_pointer_of_git_lfs_is_no_checkpoint(name, tmp_path):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    for read in (load_metadata, load_weights):
        with pytest.raises(CheckpointError, match=rf"{name} is a Git LFS pointer, not the file itself; .*git lfs"):
            read(tmp_path / name)


def test_the_same_weights_and_header_give_the_same_bytes(tmp_path):
    """With a header in random order, ten files would differ."""
    header = {f"key-{number}": 'a \u00e9 \n " \\ \x01' for number in range(6)}
    for number in range(10):
        save_weights(tmp_path / f"{number}.safetensors", {"w": torch.ones(2), "b": torch.zeros(1)}, header)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert load_metadata(tmp_path / "0.safetensors") == header


STATE = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
SAVED = {"model.safetensors": save_weights, "model.pt": checkpoints.save_pt}


@pytest.mark.parametrize("name", SAVED)
def test_no_cut_and_no_changed_byte_raises_anything_else(name, tmp_path):
    path = tmp_path / name
    SAVED[name](path, STATE, {"method": "fedavg"})
    good, refused = path.read_bytes(), 0
    cut = [good[:length] for length in range(0, len(good), 7)]
    changed = [good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :] for at in range(len(good)) for flip in (1, 255)]
    for data in [*cut, *changed, b"\x80\x02}q\x00.", b"PK\x03\x04", b"\x80\x04\x95" + b"\xff" * 40]:
        path.write_bytes(data)
        for read in (load_weights, load_metadata):
            try:
                read(path)
            except CheckpointError as error:
                assert str(path) in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SAVED)
def test_weights_that_are_no_numbers_are_refused_and_the_network_keeps_its_own(name, value, tmp_path):
    network, path = nn.Linear(3, 2), tmp_path / name
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    bad = STATE["weight"].clone()
    bad[1, 2] = value
    SAVED[name](path, {**STATE, "weight": bad}, {})
    with pytest.raises(CheckpointError, match="contains NaN or infinity in weight; use an earlier"):
        checkpoints.load_into(network, path)
    assert all(torch.equal(before[key], tensor) for key, tensor in network.state_dict().items())


@pytest.mark.parametrize("message", ["abc", "", "-64", "6.4", "0", "1" * 500, "\u0663"])
def test_a_header_whose_size_is_none_is_refused(message):
    assert input_size({"height": "64"}, 512, 640) == (64, 640)
    for name in ("height", "width"):
        with pytest.raises(CheckpointError, match=f"its header's {name} is "):
            input_size({name: message}, 512, 640)


@pytest.mark.parametrize("key", ["outputs", "classes"])
@pytest.mark.parametrize(
    "names", [",".join(map(str, range(100_000))), "background,\x1b[2Jshaft", "background,a\nb", "x" * 101]
)
def test_a_header_with_odd_names_of_classes_is_refused_at_once(key, names, tmp_path):
    save_weights(tmp_path / "a.safetensors", STATE, {key: names})
    with pytest.raises(CheckpointError, match=rf"'{key}' in its header must be at most 256 names of one line each"):
        checkpoints.header_of(tmp_path / "a.safetensors")
