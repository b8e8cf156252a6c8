"""`import surgfl`: light to import, typed, its examples true, its functions those of the commands."""

import doctest
import inspect
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import surgfl
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from tests.data.custom.conftest import IDS, lay, photograph
from tests.federation.conftest import make_job, render, rewritten, toy_bundle

__all__ = ["toy_bundle"]
ROOT = Path(__file__).resolve().parents[1]
FACE = [getattr(surgfl, name) for name in surgfl.__all__ if inspect.isfunction(getattr(surgfl, name))]


def test_importing_it_imports_nothing_heavy_and_its_examples_are_true():
    code = "import sys, surgfl; print(*[n for n in ('torch', 'numpy', 'cv2', 'nvflare', 'monai') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    result = doctest.testmod(surgfl, extraglobs=vars(surgfl))
    assert result.failed == 0 and result.attempted >= 6


@pytest.mark.parametrize("function", FACE, ids=lambda function: function.__name__)
def test_every_function_is_typed_and_says_what_it_takes_returns_and_raises(function):
    signature, said = inspect.signature(function), inspect.getdoc(function)
    assert signature.return_annotation and all(p.annotation is not p.empty for p in signature.parameters.values())
    assert "Raises:" in said and all(re.search(rf"\b{name}\b", said) for name in signature.parameters)
    assert (ROOT / "surgfl" / "py.typed").read_bytes() == b"" and typing.TYPE_CHECKING is False


def test_a_folder_becomes_a_site_a_model_and_predictions(toy_bundle, tmp_path, monkeypatch, capsys):
    ours = tmp_path / "ours"
    lay(ours, "images/{v}/{n}.png", "masks/{v}/{n}.png", pictured=photograph)
    with pytest.raises(SiteError, match="values without a name; add --id '40=NAME'"):
        surgfl.site(ours)
    site = surgfl.site(ours, ids=IDS, split={"train": "a", "validation": "b", "test": "c"})
    assert isinstance(site, Site) and site.classes == ("background", "bulldog clamp", "irrigator")
    assert surgfl.site(ours) == surgfl.site(ours / "site.yaml") == site
    with pytest.raises(SiteError, match="--id would change nothing"):
        surgfl.site(ours, ids=IDS)
    monkeypatch.chdir(tmp_path)
    given = {"bundle": "toy", "start": "random", "steps": 1, "size": (32, 32), "batch_size": 1}
    outcome = surgfl.train(site, **given)
    assert capsys.readouterr().out == "", "a library says nothing unless it is asked to"
    assert outcome.folder == Path("ours-model") and outcome.after["frames"] == 4
    surgfl.train(ours, "shown", progress=True, **given)
    assert "at 32x32, in batches of 1" in capsys.readouterr().out
    model = surgfl.load(outcome.model, bundle="toy")
    assert model.size == (32, 32) and model.segment(photograph(0)).mask.shape == (24, 32)


def test_wrong_numbers_are_refused_by_name_as_everywhere(tmp_path):
    (tmp_path / "site.yaml").write_text("dataset: frames\n")
    for refused in ({"minutes": 0}, {"steps": 0}, {"seed": -1}):
        with pytest.raises(ValueError):
            surgfl.train(tmp_path, **refused)
    with pytest.raises(ValueError, match="nobody"):
        surgfl.compare(["nobody"], out=tmp_path / "x")
    with pytest.raises(ValueError, match="--seeds is '0'"):
        surgfl.compare(["local"], seeds=0, out=tmp_path / "x")
    with pytest.raises(ValueError, match="argument --rounds: invalid int value"):
        surgfl.compare(["local"], rounds=1.5, out=tmp_path / "x")


def test_a_federation_is_simulated_from_a_job_with_other_settings(toy_bundle, tmp_path):
    paths = render(tmp_path / "sites", sites=2)
    sites = {path.parent.name: load_site(path) for path in paths}
    job = make_job("fedavg", bundle="toy", rounds=1)
    run = surgfl.simulate(job, sites, tmp_path / "runs", rounds=2, training={"iterations": 1})
    assert set(run.models) == set(run.scores) == {"site-1", "site-2"}
    assert all(path.is_file() for path in run.models.values())
    assert all(0 <= scores["dice"]["mean"] <= 1 for scores in run.scores.values())
    assert json.loads((run.folder / "run.json").read_text())["job"]["rounds"] == 2
    by_folder = surgfl.simulate(job, tmp_path / "sites", tmp_path / "again", rounds=2, training={"iterations": 1})
    assert by_folder.scores == run.scores
    without = rewritten(paths[0], tmp_path / "without", split={"train": ["instrument_dataset_1"]})
    with pytest.raises(ValueError, match=r"site site-1: .*split 'validation' has no frames"):
        surgfl.simulate(job, {**sites, "site-1": without}, tmp_path / "refused")
    with pytest.raises(ValueError, match="unknown key"):
        surgfl.simulate(job, sites, tmp_path / "runs", traning={"iterations": 1})
    with pytest.raises(ValueError, match=r"nobody: is no job folder with a meta\.json"):
        surgfl.simulate("nobody", sites, tmp_path / "runs")


@pytest.mark.slow
def test_methods_are_compared_on_ones_own_sites(tmp_path, quick_python):
    render(tmp_path / "sites", sites=2)
    few = {"rounds": 1, "iterations": 1, "size": (32, 64)}
    found = surgfl.compare(["local", "fedavg"], tmp_path / "sites", tmp_path / "out", **few)
    assert [len(result.scores["sites"]) for result in found.results] == [2, 2]
    assert (tmp_path / "out" / "index.html").is_file()
