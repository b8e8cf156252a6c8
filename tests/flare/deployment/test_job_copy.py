"""Copies of job folders for sites that let no job bring code."""

import json
import os
import shutil

import pytest

from shared_components.flare.deployment.job_folder import JobFolderError
from shared_components.flare.deployment.submission import production_copy
from tests.flare.simulator import JOBS


@pytest.fixture
def job(tmp_path):
    return shutil.copytree(JOBS / "pfedsis", tmp_path / "pfedsis")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in JOBS.glob("*/meta.json")))
def test_every_job_here_has_a_copy_of_three_files_that_differ_in_nothing(tmp_path, name):
    copy = production_copy(JOBS / name, tmp_path / "to")
    files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert copy == tmp_path / "to" / name
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    assert all((copy / file).read_bytes() == (JOBS / name / file).read_bytes() for file in files)
    assert not (copy / "app" / "custom").exists() and os.listdir(tmp_path / "to") == [name]


@pytest.mark.parametrize("file", ["app/custom/net.py", "app/custom/deep/er.txt", "app/config/custom/a.py"])
def test_a_job_that_brings_code_has_no_copy(job, tmp_path, file):
    (job / file).parent.mkdir(parents=True, exist_ok=True)
    (job / file).write_text("1")
    with pytest.raises(JobFolderError, match=r"\.(py|txt): is code that the job brings"):
        production_copy(job, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_gitkeep_that_holds_something_is_code(job, tmp_path):
    (job / "app/custom/.gitkeep").write_text("import os")
    with pytest.raises(JobFolderError, match="is code that the job brings"):
        production_copy(job, tmp_path / "to")


def test_links_and_special_files_are_refused(job, tmp_path):
    (job / "app/config/secret").symlink_to("/etc/hostname")
    with pytest.raises(JobFolderError, match="secret: is a link"):
        production_copy(job, tmp_path / "to")
    (job / "app/config/secret").unlink()
    os.mkfifo(job / "app/config/pipe")
    with pytest.raises(JobFolderError, match="pipe: is a link or a special file"):
        production_copy(job, tmp_path / "to")


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "meta.json does not exist"),
        ("{", "is no JSON that can be read"),
        ("[]", "holds list; write an object"),
        ('{"deploy_map": 3}', "has no deploy_map"),
        ('{"deploy_map": {"other": ["@ALL"]}}', "names 'other', no folder of the job"),
        ('{"deploy_map": {"../pfedsis/app": ["@ALL"]}}', "no folder of the job"),
    ],
)
def test_what_is_no_job_is_refused(job, tmp_path, meta, words):
    (job / "meta.json").unlink() if meta is None else (job / "meta.json").write_text(meta)
    with pytest.raises(JobFolderError, match=words):
        production_copy(job, tmp_path / "to")


def test_a_copy_overwrites_nothing(job, tmp_path):
    copy = production_copy(job, tmp_path / "to")
    (copy / "meta.json").write_text(json.dumps({"mine": 1}))
    with pytest.raises(JobFolderError, match="is there already"):
        production_copy(job, tmp_path / "to")
    assert json.loads((copy / "meta.json").read_text()) == {"mine": 1}
