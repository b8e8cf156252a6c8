"""The command: vectors into a file, and what a file holds."""

import pytest
import torch

from shared_components.cli import main
from shared_components.core.text.pretrained import open_clip
from shared_components.core.text.site_text import known_texts
from shared_components.core.text.vectors import read_vectors


def test_without_texts_it_lists_the_projects_own(capsys):
    assert main(["text-vectors"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith(f"{len(known_texts())} vectors of 384 numbers (sentence: all-MiniLM-L6-v2, SHA-256 53aa5117)")
    assert tuple(rest) == known_texts()


def test_texts_are_added_to_a_file_of_ones_own(clip_folder, tmp_path, capsys):
    own = tmp_path / "new" / "own.safetensors"
    words = ["--encoder", "clip", "--folder", str(clip_folder), "--file", str(own)]
    assert main(["text-vectors", "site a", "site b", *words]) == 0
    assert main(["text-vectors", "site  c", *words]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{own}: 3 vectors of 6 numbers (clip: tiny-clip")
    found, encoder = read_vectors(own), open_clip(clip_folder)
    assert found.texts == ("site a", "site b", "site c")
    for text in found.texts:
        assert torch.equal(found[text].values, encoder.encode(text).values)
    assert main(["text-vectors", "--file", str(own)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["site a", "site b", "site c"]


def test_known_texts_are_computed(sentence_folder, tmp_path, monkeypatch):
    """Of shorter ones: the tiny encoder takes eight tokens."""
    monkeypatch.setattr("shared_components.commands.text_vectors.known_texts", lambda: ("a", "b"))
    own = tmp_path / "own.safetensors"
    assert main(["text-vectors", "--known", "--folder", str(sentence_folder), "--file", str(own)]) == 0
    assert read_vectors(own).texts == ("a", "b") and read_vectors(own).kind == "sentence"


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["site a"], "name the file that gets the vectors, such as --file"),
        (["site a", "--file", "OWN", "--encoder", "clip"], "--encoder clip needs --folder"),
        (["site a", "", "--file", "OWN", "--encoder", "clip", "--folder", "CLIP"], "the site's text is ''"),
        (["--file", "OWN"], "is no file of text vectors"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(words, sentence, clip_folder, tmp_path, capsys):
    own = tmp_path / "own.safetensors"
    names = {"OWN": str(own), "CLIP": str(clip_folder)}
    assert main(["text-vectors", *[names.get(word, word) for word in words]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("surgfl text-vectors: ") and sentence in error and error.count("\n") == 1
    assert not own.exists()
