"""`surgfl jobs`: the folders of nvflare_jobs/ from one file."""

import json
import re
import shutil

import pytest

from shared_components.cli import main
from shared_components.commands import jobs as command
from shared_components.federation.messages import Job
from shared_components.flare.deployment.job_files import described_jobs, outdated_files
from shared_components.flare.deployment.job_folder import jobs_folder

SERVER = "app/config/config_fed_server.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    copy = shutil.copytree(jobs_folder(), tmp_path / "nvflare_jobs")
    monkeypatch.setattr(command, "jobs_folder", lambda: copy)
    return copy


def add(folder, row):
    with (folder / "jobs.yaml").open("a") as file:
        file.write(row)


def test_the_committed_jobs_are_what_the_file_gives():
    assert main(["jobs", "--check"]) == 0 and outdated_files(jobs_folder()) == []


@pytest.mark.parametrize("name", described_jobs(jobs_folder()))
def test_every_row_is_a_job(name):
    written = json.loads((jobs_folder() / name / SERVER).read_text())["workflows"][0]["args"]
    assert written == described_jobs(jobs_folder())[name]
    written.pop("synthetic", None)
    waits = {key: written.pop(key) for key in ("grace_seconds", "longest_wait_seconds")}
    job = Job(**written)
    assert job.method == name and min(waits.values()) > 0


def test_a_changed_file_is_refused_and_written_anew(folder, capsys):
    path, before = folder / "pfedsis" / SERVER, (folder / "pfedsis" / SERVER).read_text()
    path.write_text(before.replace('"rounds": 4', '"rounds": 5'))
    (folder / "fedavg" / "meta.json").unlink()
    assert main(["jobs", "--check"]) == 2 and "run `surgfl jobs`" in capsys.readouterr().err
    assert main(["jobs"]) == 0
    assert sorted(line.rpartition("nvflare_jobs/")[2] for line in capsys.readouterr().out.splitlines()) == [
        "fedavg/meta.json: written", f"pfedsis/{SERVER}: written",
    ]  # fmt: skip
    assert path.read_text() == before and main(["jobs", "--check"]) == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("  fedavgg: {}\n", "fedavgg is no method"),
        ("  fedavg: {rouns: 3}\n", "jobs.yaml: .*fedavg.* twice"),
        ("more: {}\n", "must hold 'all'"),
        ("  - a\n", r"jobs\.yaml: "),
    ],
)
def test_a_wrong_row_is_refused(folder, capsys, row, said):
    add(folder, row)
    assert main(["jobs"]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_key_that_no_job_has_a_method_without_a_row_and_a_missing_card_are_refused(folder, capsys):
    path = folder / "jobs.yaml"
    text = path.read_text()
    path.write_text(text.replace("  fedavg: {}", "  fedavg: {rouns: 3}"))
    assert main(["jobs"]) == 2
    assert "fedavg: unknown key 'rouns'; did you mean 'rounds'? known keys: " in capsys.readouterr().err
    for row in ("", " 3", " [rounds]"):
        path.write_text(text.replace("  fedavg: {}", f"  fedavg:{row}"))
        assert main(["jobs"]) == 2 and "write its settings as 'name: value'; known keys: " in capsys.readouterr().err
    path.write_text("all: 3\njobs: {}\n")
    assert main(["jobs"]) == 2 and "must hold 'key: value' lines" in capsys.readouterr().err
    path.write_text(text.replace("  fedavg: {}\n", ""))
    assert main(["jobs"]) == 2 and "fedavg has no row; add it under 'jobs'" in capsys.readouterr().err
    path.write_text(text)
    (folder / "fedavg" / "README.md").unlink()
    assert main(["jobs"]) == 2 and "README.md is missing; write the job's card" in capsys.readouterr().err
