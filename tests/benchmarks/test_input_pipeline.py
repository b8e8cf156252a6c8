"""The emulated GPU of `input_pipeline` gets batches without work on their pixels."""

import pytest
import torch

from evidence.benchmarks import input_pipeline
from shared_components.data import dataset as datasets
from shared_components.data.frame_cache import FrameCache
from shared_components.data.site_file import load_site
from shared_components.scenes.site import write_site


@pytest.mark.parametrize("augments", [True, False])
def test_an_emulated_gpu_launches_on_few_pixels_and_is_busy_while_it_sleeps(monkeypatch, tmp_path, augments):
    for name, small in (("FRAMES", 4), ("BATCH", 2), ("HEIGHT", 64), ("WIDTH", 96), ("STEPS", 3), ("REPEATS", 1)):
        monkeypatch.setattr(input_pipeline, name, small)
    options = {"layout": "endovis2018", "height": 64, "width": 96, "frames_per_video": 4, "videos": {"train": 1}}
    site = load_site(write_site(tmp_path / "site", look="rose", seed=1, **options))
    cache = FrameCache(tmp_path / "cache", limit=10**8)
    with input_pipeline.emulated_gpu(augments=augments):
        batches = list(input_pipeline.stream(site, cache, steps=2))
        assert 0 < input_pipeline.busy(site, cache, 1, 1) < 1
    size = (8, 8) if augments else (64, 96)
    assert [tuple(batch["image"].shape) for batch in batches] == [(2, 3, *size)] * 2
    assert {batch["label"].device.type for batch in batches} == {"cpu" if augments else "meta"}
    assert input_pipeline.speed(lambda: input_pipeline.stream(site, cache, device="cpu")) > 0
    whole = next(iter(input_pipeline.stream(site, cache, device="cpu")))
    assert whole["image"].shape == (2, 3, 64, 96) and whole["image"].dtype == torch.float32
    assert datasets.AUGMENTING_DEVICES == ("cuda", "meta")
