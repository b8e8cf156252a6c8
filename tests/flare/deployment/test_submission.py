"""What is submitted: a copy for strict sites, with the submission's own settings; the job folder stays as it is."""

import json
from pathlib import Path

import pytest

from shared_components.flare.deployment.submission import find_job, parse_settings, write_submission

JOBS = Path(__file__).resolve().parents[3] / "nvflare_jobs"


def args_of(job: Path) -> dict:
    return json.loads((job / "app/config/config_fed_server.json").read_text())["workflows"][0]["args"]


def test_settings_replace_the_jobs_own_key_by_key(tmp_path):
    before = (JOBS / "pfedsis/app/config/config_fed_server.json").read_bytes()
    settings = parse_settings(["rounds=7", "training.iterations=3", "min_sites=2"])
    copy = write_submission(JOBS / "pfedsis", tmp_path, settings=settings)
    args = args_of(copy)
    assert (args["rounds"], args["min_sites"]) == (7, 2)
    assert args["training"]["iterations"] == 3
    assert args["training"]["height"] == 192, "the job's own stays"
    assert "resume" not in args and not (copy / "app" / "custom").exists()
    assert (JOBS / "pfedsis/app/config/config_fed_server.json").read_bytes() == before


def test_a_resume_is_the_submissions_own_and_not_the_jobs(tmp_path):
    first = write_submission(JOBS / "fedavg", tmp_path / "a", resume="latest")
    assert args_of(first)["resume"] == "latest"
    assert "resume" not in args_of(write_submission(first, tmp_path / "b"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["rounds"], "is no setting"),
        (["=3"], "is no setting"),
        (["training..height=3"], "is no setting"),
        (["rounds=3", "rounds=4"], "rounds is given twice"),
        (["training=3", "training.height=4"], "training is given twice"),
        (["rounds=["], "--set rounds=[: the value is not valid YAML"),
    ],
)
def test_a_setting_that_is_none_is_refused(given, words):
    with pytest.raises(ValueError, match="--set") as error:
        parse_settings(given)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rounds=0", "rounds is 0"),
        ("rounds=three", "rounds is 'three'"),
        ("round=3", "unknown key 'round'"),
        ("training.hight=32", "hight"),
        ("name=../up", "is no folder name"),
        ("bundle=nothing", "nothing"),
    ],
)
def test_a_setting_that_the_server_would_refuse_is_refused_before_it_is_sent(tmp_path, given, words):
    with pytest.raises(ValueError) as error:
        write_submission(JOBS / "fedavg", tmp_path, settings=parse_settings([given]))
    assert words in str(error.value)


def test_a_job_is_found_by_its_name_and_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_job("pfedsis") == JOBS / "pfedsis"
    assert find_job(str(JOBS / "fedavg")) == JOBS / "fedavg"
    with pytest.raises(ValueError, match=r"nosuch: is no job folder .* or one of .*fedavg, "):
        find_job("nosuch")


def test_a_job_of_another_project_is_refused(tmp_path):
    job = tmp_path / "other"
    (job / "app" / "config").mkdir(parents=True)
    (job / "meta.json").write_text('{"name": "other", "deploy_map": {"app": ["@ALL"]}}')
    with pytest.raises(ValueError, match=r"has 0 files config_fed_server\.json"):
        write_submission(job, tmp_path / "a")
    (job / "app/config/config_fed_server.json").write_text('{"workflows": []}')
    with pytest.raises(ValueError, match="is none of SurgFL's"):
        write_submission(job, tmp_path / "b")
