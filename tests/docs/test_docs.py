"""README and docs/: every block of code is executed in a copy of the repository, every link leads somewhere."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
import torch
import yaml
from PIL import Image

from shared_components.commands import segment, train
from shared_components.core.training_settings import Training
from shared_components.data import site_file
from shared_components.federation.messages import Job
from shared_components.federation.runs.store import RoundFiles
from shared_components.federation.setup import limits
from shared_components.networks.checkpoints import load_metadata
from tests.docs import rules
from tests.docs.files import write_data, write_model_and_video
from tests.narrow import make_narrow, narrow_library, narrow_weights

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md")))]
CARDS = [str(p.relative_to(ROOT)) for p in [*ROOT.glob("bundles/**/*.md"), *ROOT.glob("nvflare_jobs/*/*.md")]]
COPIED = (
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "Makefile", "setup.cfg",
    "pyproject.toml", "requirements.txt",
    "bundles", "docs", "nvflare_jobs", "shared_components", "surgfl", "tests", "evidence", "examples",
)  # fmt: skip
README_BYTES, README_WORDS, PICTURE_BYTES, MOVING_BYTES = 8_000, 900, 300_000, 2_000_000
BLOCKS = {name: rules.blocks_of(ROOT / name, name) for name in DOCUMENTS}


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Return a folder of a small repository with narrow networks, and the data, model and video that documents use."""
    folder = tmp_path_factory.mktemp("taken-for-granted")
    write_data(folder / "data")
    root = folder / "surgfl"
    root.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, copy_function=copy_or_refer)
        else:
            shutil.copy(ROOT / name, root / name)
    narrow_library(root)
    narrow_weights(root / "bundles")
    (root / ".venv").symlink_to(sys.prefix)  # as `make install` would leave it
    with pytest.MonkeyPatch.context() as patch:
        make_narrow(patch)
        write_model_and_video(root)
    rules.shrink_jobs(root / "nvflare_jobs")
    repository(folder / "origin")
    return folder


@pytest.fixture
def sandbox(tmp_path, made_once, programs):
    """Return a copy of the repository, with small jobs and a `.venv` that is this test's own environment."""
    for name in ("surgfl", "data"):
        shutil.copytree(made_once / name, tmp_path / name, symlinks=True, copy_function=copy_or_link)
    origin = made_once / "origin"
    sandbox = rules.Sandbox(tmp_path / "surgfl", data=tmp_path / "data", origin=origin, programs=programs)
    yield sandbox
    sandbox.close()


WEIGHTS = (".safetensors", ".pt")
REPLACED = (*WEIGHTS, ".py", ".pyc", ".png", ".jpg", ".npy", ".gz", ".avi", ".mp4")
"""Files that programs and documents replace, and never change in place."""


def copy_or_refer(source: str, target: str) -> None:
    """Copy a file; of large weights make a symbolic link, which may lead to another disk."""
    (os.symlink if source.endswith(WEIGHTS) else shutil.copy2)(source, target)


def copy_or_link(source: str, target: str) -> None:
    """Copy a file, or give it a second name, which takes a tenth of the time to make and to remove."""
    (os.link if source.endswith(REPLACED) else shutil.copy2)(source, target)


def repository(folder: Path) -> None:
    folder.mkdir()
    for name in ("Makefile", "requirements.txt", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "One"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def follow(sandbox: rules.Sandbox, document: str) -> Path:
    """Execute every block of a document, and check the sites that it describes."""
    for block in BLOCKS[document]:
        sandbox.execute(block)
    sandbox.check_sites()
    return sandbox.root


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_has_a_rule_and_commands_in_running_text_exist(document):
    """A block without a language, or of an unknown one, would be executed by nobody."""
    assert [str(block) for block in BLOCKS[document] if block.language not in rules.RULES] == []
    commands = re.findall(r"(?<!`)`(surgfl [^`\n]+)`(?!`)", rules.prose_of(ROOT / document))
    assert list(filter(None, map(rules.refuse_command, commands))) == []


def test_no_block_is_overlooked_and_a_tree_of_files_is_read_with_its_folders(tmp_path):
    """Fences of any length and indented lines are found; what has no rule fails instead of being passed over."""
    path = tmp_path / "a.md"
    path.write_text("a\n\n    make it\n\n````python b.py\n```\n````\n\n- a\n  b\n\n~~~perl\nx\n~~~\n")
    found = rules.blocks_of(path, "a.md")
    assert [(b.line, b.language, b.note, b.text) for b in found] == [
        (3, "", "", "    make it\n"), (5, "python", "b.py", "```\n"), (12, "perl", "", "x\n"),
    ]  # fmt: skip
    assert rules.prose_of(path).split() == ["a", "-", "a", "b"]
    sandbox = rules.Sandbox(tmp_path, data=tmp_path, origin=tmp_path, programs=tmp_path)
    for block in (found[0], found[2]):
        with pytest.raises(AssertionError, match="there is no rule for this"):
            sandbox.execute(block)
    tree = "a/<name>/      words\nb/\n    c.py d/   words\n    e       words\nf.py        words\n"
    assert rules.paths_in(tree) == ["a/*/", "b/", "b/c.py", "b/d/", "b/e", "f.py"]


FOLLOWED_BY_NAME = {
    "README.md", "docs/how-to/add-a-task.md", "docs/reference/methods.md", "docs/how-to/run-a-job.md",
    "docs/how-to/back-up.md",
}  # fmt: skip


@pytest.mark.slow
def test_the_simulator_leaves_what_the_document_says(sandbox):
    """First, since it takes longest: a worker that began it last would keep the others waiting."""
    root = follow(sandbox, "docs/how-to/run-a-job.md")
    assert (root / "runs" / "pvt_fpn").is_dir() and (root / "ws" / "report" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in FOLLOWED_BY_NAME])
def test_a_document_can_be_followed_as_it_is_written(document, sandbox):
    follow(sandbox, document)


@pytest.mark.slow
def test_readme_can_be_followed_from_installation_to_the_demo(sandbox):
    """The first command segments a rendered operation, for people without a video."""
    assert (follow(sandbox, "README.md") / "left_frames-segmented" / "overlay.mp4").stat().st_size > 1000


@pytest.mark.slow
def test_the_table_of_methods_is_written_where_it_stands(sandbox):
    sandbox.variables["PYTHONPATH"] = str(ROOT)  # the table has the parameters of the full widths
    root = follow(sandbox, "docs/reference/methods.md")
    assert (root / "docs/reference/methods.md").read_text() == (ROOT / "docs/reference/methods.md").read_text()


@pytest.mark.slow
def test_a_kit_is_copied_and_checked_as_the_document_says(sandbox):
    """The copy has the key for its owner only, states and best model, and neither frames nor process ids."""
    kit = sandbox.root / "kits" / "hospital-a"
    run = kit / "surgfl" / "fedper" / "20260101-100000"
    files = RoundFiles(run / "hospital-a", of="fedper/20260101-100000/hospital-a")
    files.save(0, {"w": torch.ones(2)}, {"best": {}})
    for path in ("startup/client.key", "pid.fl", f"{run}/hospital-a/secure_sums.json", f"{run}/hospital-a/frames/1"):
        (kit / path).parent.mkdir(parents=True, exist_ok=True)
        (kit / path).write_text("{}")
    (run / "hospital-a" / "enrolled.json").write_text("{}")
    kit.chmod(0o700)  # as provisioned
    root = follow(sandbox, "docs/how-to/back-up.md")
    copied = {path.name for path in (root / "backup").rglob("*") if path.is_file()}
    assert copied == {"client.key", "enrolled.json", "round-00000.safetensors"}
    assert [oct((root / name).stat().st_mode)[-2:] for name in ("backup", "backup.tar")] == ["00", "00"]


@pytest.mark.slow
def test_a_task_is_added_as_the_document_says(sandbox):
    """One new file, a line of a bundle, `task:` at the sites: F1 is recorded and chooses the best model."""
    before = contents(sandbox.root / "shared_components")
    root = follow(sandbox, "docs/how-to/add-a-task.md")
    added = contents(root / "shared_components").items() - before.items()
    assert [path for path, _ in added] == ["tasks/tool_presence.py"]

    run = root / "runs" / "tools" / "latest"
    info = json.loads((run / "run.json").read_text())
    assert [row["name"] for row in info["metrics"]["tool_presence"]] == ["f1"]
    records = [json.loads(line) for line in (run / "server" / "rounds.jsonl").read_text().splitlines()]
    for site in ("site-1", "site-2"):
        assert info["cards"][site]["kind"] == "tool_presence"
        scores = [r["metrics"]["f1"]["mean"] for r in records if r["kind"] == "site" and r["site"] == site]
        best = load_metadata(run / site / "best.safetensors")
        assert len(scores) == 3 and best["round"] == str(scores.index(max(scores)))
        assert float(best["validation_f1"]) == max(scores) and scores[0] < max(scores)
        final = json.loads((run / site / "final.json").read_text())
        assert set(final["f1"]) == {"shaft", "wrist", "clasper", "mean"} and final["frames"] == 8
        assert len(list((run / site / "overlays").glob("*.png"))) == 3
    assert "F1" in (root / "report.html").read_text()
    assert json.loads((root / "results" / "metrics.json").read_text())["f1"]["mean"] is not None
    assert len(list((root / "seen" / "overlays").glob("*.png"))) == 8


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}


def test_commands_made_smaller_or_left_to_the_tutorial_are_there():
    """If this fails a line of SMALLER matches nothing any more: take it out, or correct it."""
    text = "\n".join(block.text for blocks in BLOCKS.values() for block in blocks if block.language == "sh")
    assert [pattern for pattern, *_ in rules.SMALLER if not re.search(pattern, text, re.MULTILINE)] == []
    lines = "".join(block.text for block in BLOCKS["docs/tutorials/first-federation.md"]).splitlines()
    assert rules.IN_TUTORIAL in lines and rules.smaller(rules.IN_TUTORIAL) == rules.IN_TUTORIAL


def slugs(document: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    found = re.findall(r"^#+ (.+)$", rules.prose_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("document", [*DOCUMENTS, *CARDS, "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_every_link_leads_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)\s]+)\)", rules.prose_of(path)):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{document}: {target} is not there"
        assert not anchor or anchor in slugs(found), f"{document}: {target} is no heading"


def test_readme_is_short_and_every_picture_is_shown_described_and_small():
    readme = ROOT / "README.md"
    assert len(readme.read_bytes()) <= README_BYTES
    assert len(readme.read_text().split()) <= README_WORDS
    text = {name: (ROOT / name).read_text() for name in DOCUMENTS}
    shown = [
        ((ROOT / name).parent / file, words)
        for name in DOCUMENTS
        for words, file in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text[name])
    ]
    assert all(len(words) > 20 for _, words in shown)
    assert sorted(path.name for path, _ in shown) == sorted(p.name for p in (ROOT / "docs/pictures").iterdir())
    assert shown[0][0].name == "scenes.webp" and text["README.md"].index("![") < 100
    for path, _ in shown:
        with Image.open(path) as picture:
            moving = getattr(picture, "n_frames", 1) > 1
        assert moving == (path.name == "scenes.webp")
        assert path.stat().st_size <= (MOVING_BYTES if moving else PICTURE_BYTES), path


def test_site_yaml_is_shown_for_a_public_data_set_masks_as_images_and_label_volumes():
    blocks = [block for block in BLOCKS["docs/how-to/your-data.md"] if block.note.endswith("site.yaml")]
    assert {yaml.safe_load(block.text)["dataset"] for block in blocks} == {"endovis2017", "frames", "nifti"}


@pytest.mark.parametrize(
    ("page", "keys"), [("site-yaml", site_file.KEYS), ("limits-yaml", msgspec.structs.asdict(limits.Limits()))]
)
def test_the_reference_has_all_keys_of_a_sites_files(page, keys):
    text = (ROOT / f"docs/reference/{page}.md").read_text()
    assert set(keys) <= set(re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE))


def test_all_settings_of_a_job_and_of_its_training_are_shown():
    tables = (ROOT / "docs/reference/job-settings.md").read_text().split("\n## ")
    job, training = (set(re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE)) for text in tables[:2])
    assert job == {field.name for field in fields(Job)}
    assert training == {field.name for field in fields(Training)} - {"rounds"}  # only for training at one site
    shown = [block.text for block in BLOCKS["docs/how-to/run-a-job.md"] if block.language == "json"]
    (example,) = map(json.loads, shown)
    assert set(example) <= job and set(example["training"]) <= training


def test_options_and_environment_variables_that_documents_explain_exist():
    for name, command in (("segment", segment), ("train", train)):
        parser = argparse.ArgumentParser(add_help=False)
        command.configure(parser)
        text = (ROOT / f"docs/how-to/{name}.md").read_text()
        options = set(re.findall(r"^\| `(--[a-z-]+)(?: [^`]*)?` \|", text, re.MULTILINE))
        assert options and options <= set(parser._option_string_actions)
    sources = "".join(path.read_text() for path in (ROOT / "shared_components").rglob("*.py"))
    text = (ROOT / "docs/reference/environment-variables.md").read_text()
    assert set(re.findall(r"\bSURGFL_[A-Z_]+\b", sources)) == set(re.findall(r"^\| `(SURGFL_\w+)`", text, re.MULTILINE))
