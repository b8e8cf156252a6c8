"""The commit that records name."""

import shutil
import subprocess

from shared_components.federation.runs import provenance


def test_a_commit_is_of_the_sources_and_not_of_a_repository_around_them(tmp_path, monkeypatch):
    """An installation lies in a virtual environment, and that often in a person's own repository."""
    here = tmp_path / "environment"
    here.mkdir()
    shutil.copy(provenance.__file__, here / "provenance.py")
    monkeypatch.setattr(provenance, "__file__", str(here / "provenance.py"))
    known = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", *known, "commit", "-q", "--allow-empty", "-m", "theirs"], cwd=tmp_path, check=True)
    assert provenance.commit.__wrapped__() == ""
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", *known, "commit", "-q", "-m", "ours"], cwd=tmp_path, check=True)
    assert len(provenance.commit.__wrapped__()) == 10
