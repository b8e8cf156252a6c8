"""Features of a frozen encoder on disk: rounded once, shared by clips, never believed if damaged, and no one else's."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core import feature_cache
from shared_components.core.feature_cache import FOLDER, FeatureCache, check_cache, open_cache
from shared_components.core.method import load_method
from shared_components.core.partition import partition_network
from shared_components.core.training_settings import Training, training_from
from shared_components.federation.messages import FederationError
from shared_components.federation.runs.run_cleanup import is_run
from shared_components.networks import tiny
from tests.federation.conftest import SINGLE, Federation, make_job, same, scenes, toy_bundle  # noqa: F401

SIZE = 4 * 2 * 3 * 2 + 2 * 2  # bytes of a frame's maps in float16
STILL = {"flips": False, "crops": False}
CACHED = Training(feature_cache_gb=1, **STILL)


class Maps(nn.Module):
    """A frozen encoder of two maps, (4, 2, 3) and (2,1,1), of frames of 8 x 12 pixels, and a trained layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.vision, self.last = nn.Conv2d(3, 4, 4, stride=4).requires_grad_(False), nn.Conv2d(4, 1, 1)
        self.parts, self.encoded = {"image_encoder": ("vision",)}, 0

    def encode(self, clip):
        self.encoded += clip.shape[0] * clip.shape[1]
        found = self.vision(clip.flatten(0, 1)).unflatten(0, clip.shape[:2])
        return found, found[:, :, :2, :1, :1]

    def forward(self, image, boxes=None, features=None):
        fine, coarse = self.encode(image) if features is None else features
        return self.last(fine[:, -1]) + coarse.sum()


def frames(count):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 12, 3), dtype=np.uint8)


def parted(network):
    return partition_network(network, load_method("local").partition)


def opened(folder, network, settings=CACHED, **options):
    return open_cache(network, parted(network), settings, folder, **options)


def files(folder):
    return sorted(folder.rglob("*.safetensors"))


def test_features_are_the_networks_rounded_to_float16_and_shared_by_clips(tmp_path):
    network, clip = Maps(), frames(3)
    first, again = opened(tmp_path, network)(clip), opened(tmp_path, network)(clip)
    direct = network.encode(torch.from_numpy(clip).permute(0, 3, 1, 2)[None].float() / 255)
    assert list(first) == ["features/0", "features/1"] and network.encoded == 3 + 3  # the latter are of `direct`
    for found, kept, due in zip(first.values(), again.values(), direct, strict=True):
        assert torch.equal(found, kept) and found.shape == due.shape[1:]
        torch.testing.assert_close(found, due[0].half())
    network, folder = Maps(), tmp_path / "clips"
    cache = opened(folder, network)
    both, alone = cache(clip[:2]), FeatureCache(folder / "other", network, limit=10**6)(clip[1:])
    assert network.encoded == 4 and len(cache(clip[1:])["features/0"]) == 2 and network.encoded == 5
    assert torch.equal(both["features/0"][1], alone["features/0"][0]) and len(files(folder)) == 3 + 2


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:2], lambda b: b[:-1] + b"\x01"])
def test_a_file_that_is_not_what_was_written_is_made_anew(tmp_path, damage, caplog):
    network, clip = Maps(), frames(1)
    due = opened(tmp_path, network)(clip)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert same(opened(tmp_path, network)(clip), due) and path.read_bytes() == whole
    assert caplog.messages == [f"{path} is damaged; its features are computed again"]


def test_other_weights_have_other_features_and_those_of_before_leave_the_disk(tmp_path):
    network, clip = Maps(), frames(1)
    before = opened(tmp_path, network)(clip)
    (old,) = files(tmp_path)
    begun = old.with_name(f".{old.name}.1")  # of a process that was killed
    begun.write_bytes(b"half")
    opened(tmp_path, network)
    assert old.is_file() and not begun.exists()
    network.last.weight.data += 1
    assert same(opened(tmp_path, network)(clip), before) and network.encoded == 1  # what is trained has no part in them
    network.vision.weight.data[0, 0, 0, 0] += 0.5
    assert not same(opened(tmp_path, network)(clip), before)
    assert len(files(tmp_path)) == 1 and not old.exists()


def test_a_full_cache_takes_nothing_more_and_keeps_what_it_has(tmp_path, caplog):
    network, clip = Maps(), frames(3)
    due = opened(tmp_path / "whole", network)(clip)
    size = files(tmp_path / "whole")[0].stat().st_size
    assert size >= SIZE
    for _ in range(2):
        cache = FeatureCache(tmp_path / "small", network, limit=2 * size)
        assert same(cache(clip), due) and same(cache(clip), due)
    assert len(files(tmp_path / "small")) == 2 and network.encoded == 3 + 4 + 2
    assert len(caplog.messages) == 2 and "has reached the limit feature_cache_gb" in caplog.messages[0]


def no_disk(monkeypatch, folder):
    monkeypatch.setattr(feature_cache, "RESERVE", 10**18)


def refused(monkeypatch, folder):
    def write(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_cache, "write_bytes", write)


def no_folder(monkeypatch, folder):
    folder.write_text("a file in its place")


@pytest.mark.parametrize(
    "fail, why", [(no_disk, "GB of its disk free"), (refused, "No space left"), (no_folder, "Not a directory")]
)
def test_a_disk_that_takes_nothing_is_one_warning_and_no_failure(tmp_path, monkeypatch, caplog, fail, why):
    network, clip, folder = Maps(), frames(3), tmp_path / "features"
    fail(monkeypatch, folder)
    found = opened(folder, network)(clip)
    assert same(found, opened(tmp_path / "none", network, adds=False)(clip)) and not files(folder)
    assert len(caplog.messages) == 1 and why in caplog.text and caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("values, write", [
    ({}, "flips: false, crops: false"), ({"flips": False}, "crops: false"),
    ({**STILL, "colour": 0.5, "rotation": 20.0}, "colour: 0, rotation: 0"),
])  # fmt: skip
def test_frames_that_change_at_random_and_a_cache_exclude_each_other(values, write):
    with pytest.raises(ValueError, match=rf"^training: feature_cache_gb is 2, but .*; write {write}, or feat"):
        training_from({"feature_cache_gb": 2, **values})
    assert training_from({"feature_cache_gb": 2, **STILL}).feature_cache_gb == 2


def test_features_of_an_encoder_that_trains_or_is_none_are_refused():
    network = Maps()
    network.vision.requires_grad_(True)
    with pytest.raises(ValueError, match=r"Maps trains its image_encoder .vision.weight.; write it under 'fixed'"):
        check_cache(network, parted(network), CACHED)
    plain = tiny.Tiny()
    with pytest.raises(ValueError, match="Tiny has no image_encoder to cache"):
        check_cache(plain, parted(plain), CACHED)
    check_cache(plain, parted(plain), Training())


class Frozen(tiny.Tiny):
    """`Tiny` whose encoder has the name of one that can be run by itself."""

    encoded = 0

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.parts = {**self.parts, "image_encoder": ("encoder",)}

    def encode(self, clip):
        Frozen.encoded += clip.shape[0] * clip.shape[1]
        return (self.encoder(clip.flatten(0, 1)).unflatten(0, clip.shape[:2]),)

    def forward(self, image, features=None):
        if features is None:
            return super().forward(image)
        self._features = lambda image: (features[0][:, -1],) * 2  # of the current frame, as of pictures
        found = super().forward(image)
        del self._features
        return found


@pytest.fixture
def federation(toy_bundle, monkeypatch, scenes, tmp_path):  # noqa: F811
    """Return a function that makes a federation of one site with a frozen encoder."""
    monkeypatch.setattr(tiny, "Tiny", Frozen)
    monkeypatch.setattr(Frozen, "__module__", tiny.__name__)

    def make(name, *, rounds=3, **training):
        training = {"fixed": ["image_encoder"], "learning_rate": 0.01, **STILL, **training}
        job = make_job("fedavg", bundle="toy", training=training, rounds=rounds, tasks=SINGLE)
        return Federation(job, tmp_path / name, scenes, ["site-1"])

    return make


def test_a_training_ends_with_the_same_bits_whatever_became_of_the_cache(federation):
    """And without one within the rounding of its features."""
    cached, full, plain = federation("cached", feature_cache_gb=1), federation("full", feature_cache_gb=1e-8), None
    cached.run(until=1)
    kept, Frozen.encoded = files(cached.files("site-1").folder / FOLDER), 0
    assert len(kept) == 4  # all frames of the site
    cached.run(until=2)
    assert Frozen.encoded == 0 and is_run(cached.files("site-1").folder.parent)
    kept[0].write_bytes(b"cut"), kept[1].unlink()
    cached.run()
    assert Frozen.encoded == 2 and same(cached.weights(), full.run().weights())
    assert not files(full.files("site-1").folder / FOLDER)
    cached.finish()
    assert not (cached.files("site-1").folder / FOLDER).exists()
    plain = federation("plain").run().weights()
    far = max(float((plain[name].float() - value.float()).abs().max()) for name, value in cached.weights().items())
    assert 0 < far < 1e-2


def test_a_federation_without_such_an_encoder_is_refused_before_its_first_round(federation):
    with pytest.raises(
        FederationError, match="site-1: training: feature_cache_gb is 1, but Frozen trains its image_en"
    ):
        federation("trained", feature_cache_gb=1, fixed=[]).enrol()
