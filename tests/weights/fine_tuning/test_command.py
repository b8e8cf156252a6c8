"""`surgfl train FOLDER` describes the folder, trains, and reports the scores before and after."""

from unittest.mock import Mock

import pytest
import yaml

from shared_components.cli import main
from shared_components.core.trained_model import load_trained
from shared_components.data.site_file import load_site
from tests.data.custom.conftest import NAMED, lay, photograph

SMALL = ("--bundle", "toy", "--start", "random", "--size", "32x32", "--steps", "2", "--batch-size", "1")


@pytest.fixture
def folder(toy_bundle, tmp_path, monkeypatch):
    """Return a function that writes a custom folder with videos; results go to the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(videos="abc", name="ours"):
        lay(tmp_path / name, "images/{v}/{n}.png", "masks/{v}/{n}.png", videos=videos, pictured=photograph)
        return tmp_path / name

    return make


def test_a_folder_becomes_a_model_with_scores_before_and_after(folder, tmp_path, capsys):
    ours = folder()
    assert main(["train", str(ours), *NAMED, *SMALL]) == 0
    message = capsys.readouterr().out
    assert "at 32x32, in batches of 1, at most 2 steps: about " in message
    assert "all test frames are from one video (c)" in message
    lines = message.strip().splitlines()
    assert lines[-1] == "next: surgfl segment VIDEO --model ours-model/model.safetensors"
    assert lines[-3:-1] == ["ours-model/before-after.png", "ours-model/model.safetensors"]
    assert any(line.startswith("test Dice 0.") and line.endswith("(2 steps; 4 frames)") for line in lines)
    assert any(line.startswith("  bulldog clamp 0.") for line in lines)
    assert load_site(ours).split["test"][0].video == "c"
    trained = load_trained(tmp_path / "ours-model/model.safetensors", bundle="toy")
    assert trained.task.card.outputs == ("background", "bulldog clamp", "irrigator")
    assert main(["train", str(ours), *SMALL, "--seed", "1"]) == 0, "the same command goes by the file that is there"


def test_options_that_a_site_yaml_would_ignore_are_refused(folder, capsys):
    ours = folder()
    assert main(["train", str(ours), *NAMED, *SMALL]) == 0
    assert main(["train", str(ours), *NAMED, *SMALL]) == 2
    assert "ours/site.yaml: describes the folder already, and --id would change nothing; " in capsys.readouterr().err


def test_one_video_is_cut_by_time_and_two_give_a_test(folder, capsys):
    one = folder("a", "one")
    assert main(["train", str(one), *NAMED, *SMALL]) == 0
    assert "training frames are from the same video (one): the scores show how well" in capsys.readouterr().out
    two = folder("ab", "two")
    assert main(["train", str(two), *NAMED, *SMALL]) == 0
    split = yaml.safe_load((two / "site.yaml").read_text())["split"]
    assert split == {"train": ["a"], "validation": [{"b": [0, 2]}], "test": [{"b": [2, 4]}]}
    assert "validation and test use parts of the same video (b)" in capsys.readouterr().out


def test_too_few_frames_and_other_paths_end_with_one_sentence_and_no_model(folder, tmp_path, capsys):
    one = folder("a")
    for kind in ("images", "masks"):
        for number in (2, 3):
            (one / kind / "a" / f"{number}.png").unlink()
    assert main(["train", str(one), *NAMED, *SMALL]) == 2
    assert "2 labelled frames of 3 needed to train, validate and test" in capsys.readouterr().err
    assert not (tmp_path / "ours-model").exists()
    assert main(["train", str(tmp_path / "nowhere"), *SMALL]) == 2
    assert "nowhere: no such file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["train", str(tmp_path / "empty"), *SMALL]) == 2
    assert "was searched for frames and masks" in capsys.readouterr().err
    assert not (tmp_path / "empty" / "site.yaml").exists()


def test_an_interruption_says_that_nothing_was_written(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shared_components.weights.fine_tuning.train.fine_tune", Mock(side_effect=KeyboardInterrupt))
    for _ in range(2):  # the same command begins again
        assert main(["train", str(folder()), *NAMED, *SMALL]) == 130
        assert "interrupted; no model was written" in capsys.readouterr().out


@pytest.mark.parametrize("odd", [("--size", "64"), ("--batch-size", "0"), ("--start", "nowhere.safetensors")])
def test_a_command_with_a_wrong_option_leaves_no_description(folder, odd, capsys):
    ours = folder()
    assert main(["train", str(ours), *NAMED, *SMALL, *odd]) == 2
    assert not (ours / "site.yaml").exists()


def test_videos_to_validate_alone_are_no_split(folder, capsys):
    assert main(["train", str(folder("abc")), *NAMED, *SMALL, "--validation", "b"]) == 2
    assert "'split' has no video under 'train'" in capsys.readouterr().err


def test_only_what_cannot_be_seen_is_asked_at_a_terminal(folder, monkeypatch):
    asked = []
    answers = iter(["irrigator", "bulldog clamp", "yes"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or next(answers))
    assert main(["train", str(folder()), *SMALL]) == 0
    assert len(asked) == 3 and "40" in asked[0] and "take this split" in asked[2]
