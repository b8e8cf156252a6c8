"""FedST itself in this process: what it cannot work with ends it before the first round, by one sentence."""

import math
import shutil

import pytest

from shared_components.core.bundle import load_bundle
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import FederationError
from tests.core.text.conftest import clip_folder  # noqa: F401 (a fixture)
from tests.federation.conftest import SMALL, TINY, make_job, render, rewritten

CLIPS = {"frames": 4, "interval": 0.2}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Return the site.yaml files of two sites and a server whose videos also have frames without labels."""
    folder = tmp_path_factory.mktemp("films")
    return render(folder, layout="sar_rarp50", frames_per_video=3, clip=4, interval=0.2)


@pytest.fixture
def refusal(films, tmp_path):
    """Return a function that begins FedST with something changed and returns the sentence that ends it."""

    def refusal(*, first=None, site=None, server=..., tasks=None, **arguments):
        arguments = {**SMALL["fedst"]["arguments"], **arguments}
        job = make_job("fedst", arguments=arguments, tasks=tasks or {}, training={**TINY, "batch_size": 1})
        sites = {"site-1": first or films[0], "site-2": site or films[1]}
        data = films[2] if server is ... else server
        with pytest.raises((FederationError, ValueError)) as caught:
            run_together(job, sites, tmp_path / "runs", server_data=data)
        words = str(caught.value)
        assert "\n" not in words and not list(tmp_path.rglob("round-*.safetensors"))
        return words

    return refusal


@pytest.mark.slow
def test_the_bundles_own_clips_are_those_of_these_films(films, tmp_path):
    assert CLIPS.items() <= load_bundle("fedst").tasks["segmentation"].items()
    job = make_job("fedst", rounds=1, tasks={}, training={**TINY, "batch_size": 1, "iterations": 1})
    sites = {"site-1": films[0], "site-2": films[1]}
    server = run_together(job, sites, tmp_path / "runs", server_data=films[2])
    assert server.state.round == 1 and server.state.profiles["site-1"].card.frames == 4


@pytest.mark.parametrize("who", ["site", "server"])
def test_a_clip_of_which_an_earlier_frame_is_missing(refusal, films, tmp_path, who):
    path = shutil.copytree(films[1].parent, tmp_path / "harmed") / "site.yaml"
    sample = samples(load_site(path), "train", SampleSpec(("label",), **CLIPS))[-1]
    assert len(set(sample.images)) == 4
    sample.images[0].unlink()
    words = refusal(**{who: path})
    begins = "site site-2: " if who == "site" else "the server cannot train: site server: "
    assert words.startswith(f"{begins}{sample.images[0]}: file is missing, and clips show it; ")
    assert "or write 'history: false' in site.yaml, which repeats the frame" in words


def test_an_interval_that_the_video_cannot_give(refusal, scenes, films):
    """EndoVis has an image every half second."""
    words = refusal(site=scenes[0])
    assert words.startswith(f"site site-2: {scenes[0]}: the task needs clips of 4 frames 0.2 s apart, but ")
    words = refusal(tasks={"segmentation": {"interval": 0.01}})
    assert "the task needs clips of 4 frames 0.01 s apart" in words
    words = refusal(tasks={"segmentation": {"interval": math.nan}})
    assert "segmentation: interval is nan" in words


@pytest.mark.parametrize(
    "harmed, text, sentence",
    [
        (True, "a", "contains no weights; copy model.safetensors or pytorch_model.bin there"),
        (False, "a b c d e f g h i j k", "takes at most 12, including start and end; shorten it"),
        (False, "a", "has 6 numbers, but 384 are"),
    ],
)
def test_a_text_or_an_encoder_of_no_use(refusal, films, clip_folder, tmp_path, harmed, text, sentence):  # noqa: F811
    if harmed:
        (clip_folder / "model.safetensors").unlink()
    path = rewritten(films[0], tmp_path / "s", text=text, text_encoder=str(clip_folder))
    words = refusal(first=path, text_encoder="clip", text_wording="plain")
    assert words.startswith(f"site site-1, {path}: ") and sentence in words


def test_a_server_without_data(refusal, films, tmp_path):
    path = rewritten(films[2], tmp_path / "s", split={"train": [], "validation": [], "test": []})
    words = refusal(server=path)
    assert words.startswith("the server cannot train: ") and "split 'train' has no frames" in words
    assert refusal(server=None) == "fedst trains at the server, and this one has no data of its own"
    words = refusal(server=tmp_path / "gone")
    assert words == f"the server cannot train: {tmp_path}/gone: no such file; write a site.yaml there"
