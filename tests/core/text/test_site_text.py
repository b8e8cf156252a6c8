"""A site's text becomes the indicator of its network, or is refused by one sentence; and the texts that ship."""

import shutil
from itertools import combinations

import pytest
import torch
from torch import nn

from shared_components.commands._text_vectors import known_texts
from shared_components.core.method import SiteFacts
from shared_components.core.text import READERS
from shared_components.core.text.pretrained import MINILM, MINILM_SHA256
from shared_components.core.text.site_text import KINDS, LETTERS, SURGERIES, SiteText, site_text, task_text
from shared_components.core.text.vectors import SHIPPED, Vector, add_vectors, read_vectors
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.profile_items import check_item
from shared_components.data.readers import find_reader
from shared_components.data.site_file import load_site
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.scenes.layouts import LAYOUTS
from shared_components.scenes.looks import LOOKS, look_named
from shared_components.scenes.site import write_site
from tests.core.text.conftest import PROJECTED, WIDTH

RENDERED = f"synthetic: {look_named('rose').text}"


class Conditioned(nn.Module):
    """A network of an indicator alone."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.register_buffer("indicator", torch.zeros(width))

    def set_indicator(self, indicator):
        self.indicator.copy_(indicator)


def indicator_of(facts, width=384, **settings):
    """Return the network's indicator, and the name of the encoder that computed it."""
    network = Conditioned(width)
    return network.indicator, SiteText(**settings)(network, facts)


def shipped(text):
    return read_vectors()[text].values


def refused(words, facts, width=384, **settings):
    with pytest.raises(ValueError, match=words) as error:
        indicator_of(facts, width, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("look", [*LOOKS, "random-7"])
def test_every_rendered_site_has_a_vector_in_the_sentence_and_plain(look):
    text = f"synthetic: {look_named(look).text}"
    for wording, due in (("sentence", site_text(text)), ("plain", text)):
        assert torch.equal(indicator_of(SiteFacts(text), wording=wording)[0], shipped(due))


@pytest.mark.parametrize("wording", ["sentence", "letter", "plain"])
def test_a_text_that_is_the_papers_sentence_is_taken_as_it_is(wording):
    """Broken over lines, as YAML does it."""
    text = "This is the Local site D model\n  and the surgery type is hysterectomy"
    assert torch.equal(indicator_of(SiteFacts(text), wording=wording)[0], shipped(site_text("hysterectomy", "D")))


PARTS = ("background", "shaft", "wrist", "clasper")


@pytest.mark.parametrize("facts, due", [
    (SiteFacts("porcine  nephrectomy", dataset="endovis2017", classes=PARTS),
     "Dataset: EndoVis2017, Surgery: porcine nephrectomy, Task: Instrument Segmentation, "
     "Label: Shaft, Wrist, Clasper"),
    (SiteFacts("hysterectomy", dataset="mine", task="segmentation", classes=("background", "uterus", "big_jaw")),
     "Dataset: mine, Surgery: hysterectomy, Task: Scene Segmentation, Label: Uterus, Big Jaw"),
    (SiteFacts("porcine", dataset="scared"), "Dataset: SCARED, Surgery: porcine, Task: Depth Estimation"),
    (SiteFacts("porcine", dataset="endovis2018", task="depth", classes=PARTS),
     "Dataset: EndoVis2018, Surgery: porcine, Task: Depth Estimation"),
    (SiteFacts("x", dataset="d", task="reconstruction", classes=PARTS), "Dataset: d, Surgery: x, Task: Reconstruction"),
])  # fmt: skip
def test_the_wording_of_the_task_names_data_set_surgery_task_and_labels(facts, due):
    assert task_text(facts) == due


def test_surgfeds_own_sentence_is_taken_as_it_is(tmp_path):
    own, text = tmp_path / "own.safetensors", "Dataset: EndoVis2017, Task: Instrument Segmentation"
    add_vectors(own, [Vector(torch.tensor([0.6, 0.8]), "mine", "by hand", "", text)])
    assert indicator_of(SiteFacts(text, vectors=own), width=2, wording="task")[0].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("layout", [name for name, style in LAYOUTS.items() if not style.operation])
def test_every_rendered_site_of_every_layout_has_a_vector_of_its_task(layout):
    style = LAYOUTS[layout]
    dataset = style.dataset or layout
    reader = find_reader(dataset)
    task = "" if "label" in reader.TARGETS else "depth"
    classes = CLASS_MAPS.get(style.classes or reader.USUAL or reader.CLASS_MAP, ())
    facts = SiteFacts(RENDERED, dataset=dataset, task=task, classes=classes)
    assert torch.equal(indicator_of(facts, wording="task")[0], shipped(task_text(facts)))


def test_a_published_vector_has_its_encoders_name_and_a_width_of_its_own():
    item = SiteText().published(SiteFacts(RENDERED))
    assert item == {"encoder": f"sentence {MINILM_SHA256}", "values": shipped(site_text(RENDERED)).tolist()}
    check_item("text_vector", item)
    numbered = SiteText(kind="one_hot").published(SiteFacts("", site=2, sites=4))
    assert numbered["encoder"] == "one_hot" and numbered["values"] == torch.eye(1, 384)[0].roll(2).tolist()


def test_texts_without_a_vector_are_refused_with_the_command_that_computes_it():
    refused("has no vector of the text .*liver.*surgfl text-vectors --file", SiteFacts("liver resection"))
    refused("has no vector of the text 'This is the Local site A model", SiteFacts(RENDERED), wording="letter")
    facts = SiteFacts(SURGERIES[0], site=5, sites=6)
    refused("has no vector of the text 'This is the Local site F model", facts, wording="letter")
    refused("supports 26 sites, but this is site 27", SiteFacts("x", site=26, sites=27), wording="letter")


@pytest.mark.parametrize("text", ["", "  \n "])
def test_a_site_without_a_text_is_refused_unless_its_number_is_what_counts(text):
    refused("the site's text is .*; describe the site in words", SiteFacts(text))
    assert indicator_of(SiteFacts(text), kind="one_hot")[0].sum() == 1


def test_the_sites_own_file_counts_unless_the_job_does_not_ask_for_it(tmp_path):
    own = tmp_path / "own.safetensors"
    add_vectors(own, [Vector(torch.tensor([0.6, 0.8]), "mine", "by hand", "", site_text("liver resection"))])
    indicator, made_by = indicator_of(SiteFacts("liver resection", vectors=own), width=2)
    assert indicator.tolist() == pytest.approx([0.6, 0.8]) and made_by == "mine by hand"
    facts = SiteFacts(RENDERED, vectors=tmp_path / "none.safetensors", encoder=tmp_path)
    assert indicator_of(facts, kind="one_hot")[1] == "one_hot"
    assert torch.equal(indicator_of(SiteFacts(RENDERED, encoder=tmp_path))[0], indicator_of(SiteFacts(RENDERED))[0])
    refused("write its folder as 'text_encoder' in site.yaml", SiteFacts(RENDERED), kind="clip")


def test_one_encoder_has_one_name_and_is_read_from_the_sites_folder(clip_folder, sentence_folder):
    copy = shutil.copytree(clip_folder, clip_folder.with_name("copied"))
    facts = [SiteFacts("site a", encoder=folder) for folder in (clip_folder, copy)]
    (first, by), (second, other_by) = (indicator_of(f, PROJECTED, kind="clip", wording="plain") for f in facts)
    assert torch.equal(first, second) and bool(first.any())
    assert by == other_by and by.startswith("clip ") and len(by) == len("clip ") + 64
    facts = SiteFacts("a robotic site", encoder=sentence_folder)
    indicator, made_by = indicator_of(facts, WIDTH, kind="sentence", wording="plain")
    assert float(indicator.norm()) == pytest.approx(1) and made_by.startswith("sentence ")


def test_random_kinds_follow_the_sites_number_and_the_seed():
    draws = [
        indicator_of(SiteFacts("", site=n, sites=4), 6, kind="random", seed=s)[0] for n, s in ((0, 0), (1, 0), (0, 1))
    ]
    assert not any(torch.equal(draws[0], other) for other in draws[1:])
    assert torch.equal(draws[0], indicator_of(SiteFacts("", sites=4), 6, kind="random")[0])


def test_the_network_of_fedst_is_conditioned_if_the_widths_are_equal():
    network = PvtFpnClips(levels=[32], text="prompt")
    SiteText()(network, SiteFacts(RENDERED))
    assert torch.equal(network.state_dict()["indicator"], shipped(site_text(RENDERED)))
    refused("has 384 numbers, but 512 are needed", SiteFacts(RENDERED), 512)


@pytest.mark.parametrize("network", [nn.Linear(1, 1), PvtFpnClips(text="none", temporal=False)])
def test_a_network_that_cannot_be_told_is_refused(network):
    with pytest.raises(ValueError, match=rf"^{type(network).__name__} cannot use a site's text; choose"):
        SiteText()(network, SiteFacts(RENDERED))


def likeness(first, second):
    return float(torch.cosine_similarity(shipped(first), shipped(second), dim=0))


def test_by_default_the_papers_sentence_is_looked_up_with_or_without_a_letter():
    sentence = "This is the Local site A model and the surgery type is nephrectomy"  # section 3.2.2
    assert site_text("nephrectomy", "A") == sentence
    assert site_text("nephrectomy") == sentence.replace("site A", "site")
    indicator, made_by = indicator_of(SiteFacts(RENDERED, site=2, sites=3))
    expected = f"This is the Local site model and the surgery type is {RENDERED}"
    assert torch.equal(indicator, shipped(expected)) and bool(indicator.any())
    assert made_by == f"sentence {MINILM_SHA256}"
    for number, letter in enumerate(LETTERS):
        facts = SiteFacts("hysterectomy", site=number, sites=5)
        due = f"This is the Local site {letter} model and the surgery type is hysterectomy"
        assert torch.equal(indicator_of(facts, wording="letter")[0], shipped(due))


def test_the_shipped_file_is_small_and_has_the_known_texts_of_the_installable_encoder():
    assert read_vectors().texts == known_texts()
    vectors = read_vectors()
    assert (vectors.kind, vectors.model, vectors.sha256) == ("sentence", MINILM, MINILM_SHA256)
    assert vectors.values.shape == (len(known_texts()), 384) and vectors.values.dtype == torch.float32
    torch.testing.assert_close(vectors.values.norm(dim=1), torch.ones(len(known_texts())))
    assert SHIPPED.stat().st_size < 350_000


@pytest.mark.parametrize("look", ["violet", "random-12"])
def test_what_rendered_sites_say_has_a_vector(look, tmp_path):
    write_site(tmp_path / "a", look=look, seed=1, videos={"train": 1}, frames_per_video=1, height=64, width=64)
    text = load_site(tmp_path / "a").text
    assert shipped(text).shape == shipped(site_text(text)).shape == (384,)


def test_vectors_differ_between_texts_and_are_near_where_surgeries_are():
    """The two nephrectomies and the two prostatectomies are nearest; surgeries are far from looks."""
    pairs = {pair: likeness(*pair) for pair in combinations(SURGERIES, 2)}
    first, second, third, *_ = sorted(pairs, key=pairs.__getitem__, reverse=True)
    assert {first, second} == {SURGERIES[0:2], SURGERIES[2:4]} and pairs[third] < 0.5 < pairs[second] < 0.8
    looks = [text for text in known_texts() if text.startswith("synthetic: ")]
    assert len(looks) == len(LOOKS) + 1
    assert max(likeness(surgery, look) for surgery in SURGERIES for look in looks) < 0.35


def test_an_encoder_with_a_folder_reads_any_text():
    assert tuple(kind for kind, encoder in KINDS.items() if "folder" in encoder.takes) == READERS
