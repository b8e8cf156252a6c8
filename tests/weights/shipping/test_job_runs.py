"""A federated job's run is shipped with its records and scored with controls."""

import json

import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.core.shipped_weights import FACTS, MODEL, control_rows
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.data.splits import refuse_seen_videos
from shared_components.federation.messages import Job
from shared_components.networks.checkpoints import CheckpointError, load_metadata, save_weights
from shared_components.networks.mae_vit import MaeVit
from shared_components.scenes.site import write_site
from shared_components.weights.bundle_files import make
from shared_components.weights.shipping.weights import facts_of_job

pytestmark = pytest.mark.slow

DESCRIPTION = """\
title: A toy
network_def: |
  _target_: shared_components.networks.mae_vit.MaeVit
  out_channels: 3
tasks: |
  reconstruction: {patch: 8}
training: {height: 64, width: 64, batch_size: 2, epochs: 1, accumulate: 2}
metadata: {name: Toy, task: to be small, description: A network for tests., references: []}
"""
NOTES = {
    "bundle": "mae", "method": "fedsam", "task": "reconstruction", "outputs": "", "height": "64", "width": "64",
    "frames": "1", "numbers": json.dumps({"patch": 8}), "site": "server",
}  # fmt: skip
SITES = [{"kind": "site", "samples": count, "loss": {"reconstruction": 1.0}} for count in (9, 1)]
RECORDS = [*SITES, {"kind": "aggregation", "seconds_wall": 7200.0}, {"kind": "site", "loss": {}}, {"kind": "outsider"}]
WORDS = ["--data", "two toy sites"]
SMALL = ["--bundle", "mae", "--looks", "rose", "--unseen", "0", "--videos", "1", "--frames", "2"]


@pytest.fixture
def run(tmp_path, toy_bundles):
    """Return the folder of a finished run, of a job whose bundle is there."""
    (toy_bundles / "mae.yaml").write_text(DESCRIPTION)
    make.write_bundle("mae", toy_bundles)
    folder = tmp_path / "latest"
    torch.manual_seed(0)
    save_weights(folder / "server" / "model.safetensors", MaeVit().state_dict(), NOTES)
    (folder / "server" / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    job = Job("toy", "mae", "fedsam", rounds=1).to_json()
    about = {"commit": "abc1234", "seed": 5, "hardware": "a machine", "start": {"start": "random", "sha256": ""}}
    (folder / "run.json").write_text(json.dumps({"job": job, "sites": ["a", "b"], **about}))
    return folder


def test_the_records_of_a_run_describe_its_training_also_with_small_batches(run):
    facts = facts_of_job(run)
    assert facts["command"] == "nvflare simulator nvflare_jobs/toy -w ws -n 2"
    assert facts["steps"] == 5 // 2 + 1 // 2 and facts["frames"] == (5 + 1) * 2  # batches of 2 of 9 and of 1
    assert facts["sizes"] == ["64x64:2"] and facts["seconds"] == 7200 and facts["sites"] == 2
    assert facts["job"] == {"method": "fedsam", "rounds": 1} and facts["settings"] == {"start": "random"}
    described = json.loads((run / "run.json").read_text())
    described["job"]["training"]["few_samples"] = "shrink"
    (run / "run.json").write_text(json.dumps(described))
    facts = facts_of_job(run)
    assert facts["frames"] == 5 * 2 + 1 * 1 and facts["steps"] == 2


@pytest.mark.parametrize(("records", "sentence"), [(RECORDS[:-1], "has not finished"), ([{}], "cannot be read")])
def test_an_unfinished_or_damaged_run_is_refused_in_one_sentence(run, records, sentence):
    (run / "server" / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(CheckpointError, match=sentence):
        facts_of_job(run)


def test_a_run_without_words_on_its_data_is_refused(run, toy_bundles, capsys):
    assert main(["ship", str(run), *SMALL]) == 2
    assert "--data is missing: sites of a federated job" in capsys.readouterr().err
    assert not (toy_bundles / "mae" / MODEL).exists()


def test_a_run_ships_with_its_data_and_beside_controls(run, toy_bundles, tmp_path, capsys):
    real = write_site(tmp_path / "site", look="ivory", seed=3, videos={"train": 1, "test": 1}, frames_per_video=2,
                      height=64, width=64)  # fmt: skip
    assert main(["ship", str(run), *SMALL, *WORDS, "--real", f"A={real}", "--seen", str(real)]) == 0
    notes = load_metadata(toy_bundles / "mae" / MODEL)
    assert notes["data"] == "two toy sites"
    (seen,) = json.loads(notes["seen_videos"]).values()
    with pytest.raises(ValueError, match="has seen 1 of the test's videos"):
        refuse_seen_videos(notes, "endovis2017", seen, start="model")

    card = json.loads((toy_bundles / "mae" / FACTS).read_text())
    rows = control_rows(card)
    assert [row[:2] for row in rows] == [
        (where, who) for where in ("named looks", "A") for who in ("trained", "mean colour", "untrained")
    ]
    assert card["scores"][1]["controls"]["mean colour"]["mse"]["mean"] == pytest.approx(by_hand(real), abs=1e-6)
    text = (toy_bundles / "mae" / "docs" / "README.md").read_text()
    assert "was trained by 2 sites together in 1 round, on two toy sites" in text and "| A | mean colour |" in text
    assert "trained on two toy sites" in (toy_bundles / "mae" / "docs" / "data_license.txt").read_text()
    assert "untrained" in capsys.readouterr().out and make.outdated_files("mae", toy_bundles) == []


def by_hand(real):
    """Return the error of the mean colour on the hidden patches that scoring draws, by loops."""
    errors = []
    for number, sample in enumerate(samples(load_site(real), "test", SampleSpec(()))):
        image = read_sample(sample).images[0] / 255.0
        order = torch.randperm(64, generator=torch.Generator().manual_seed(number))[:48].tolist()
        hidden = [image[8 * (p // 8) : 8 * (p // 8) + 8, 8 * (p % 8) : 8 * (p % 8) + 8] for p in order]
        errors.append(np.mean([(patch - image.mean((0, 1))) ** 2 for patch in hidden]))
    return np.mean(errors)
