"""Files of vectors: what was put in comes out, and what is another file is named; and the command."""

import json
import math
import struct

import pytest
import torch
from safetensors.torch import save_file

from shared_components.cli import main
from shared_components.commands._text_vectors import known_texts
from shared_components.core.text.pretrained import open_clip
from shared_components.core.text.vectors import HEADER, TENSOR, Vector, add_vectors, read_vectors

FACTS = {"kind": "clip", "model": "tiny", "sha256": "ab" * 32, "texts": ["one", "two"]}


def vector(text, *values, model="tiny", sha256="ab" * 32):
    return Vector(torch.tensor(values), "clip", model, sha256, text)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.safetensors"
    add_vectors(path, [vector("one", 1.0, 2.0), vector("two", 0.1, -3.0)])
    return path


def refused(words, path, text="one"):
    with pytest.raises(ValueError, match=words) as error:
        read_vectors(path).encode(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_vectors_are_the_same_bytes_each_time_and_are_added_and_replaced(file, tmp_path):
    again = tmp_path / "again.safetensors"
    add_vectors(again, [vector("one", 1.0, 2.0), vector("two", 0.1, -3.0)])
    assert again.read_bytes() == file.read_bytes()
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])  # the layout of safetensors, read without the library
    assert json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][HEADER]) == FACTS
    assert struct.unpack("<4f", raw[8 + length :]) == pytest.approx((1, 2, 0.1, -3))
    found = read_vectors(file).encode("two")
    assert torch.equal(found.values, torch.tensor([0.1, -3.0]))
    assert (found.kind, found.model, found.sha256, found.text) == ("clip", "tiny", "ab" * 32, "two")
    assert read_vectors(str(file)).encode(" two\n").text == "two"
    add_vectors(file, [vector("drei süß", 5.0, 6.0), vector("one", 7.0, 8.0)])
    found = read_vectors(file)
    assert found.texts == ("one", "two", "drei süß")
    assert found.values.tolist() == [[7, 8], [pytest.approx(0.1), -3], [5, 6]]


@pytest.mark.parametrize(
    "other", [{"model": "large"}, {"sha256": "cd" * 32}, {"values": (1.0, 2.0, 3.0)}], ids=["model", "hash", "width"]
)
def test_a_file_holds_the_vectors_of_one_encoder(file, other):
    before = file.read_bytes()
    values = other.pop("values", (1.0, 2.0))
    with pytest.raises(ValueError, match=r"a file contains vectors of one encoder, not of .* and .*; use another file"):
        add_vectors(file, [vector("three", *values, **other)])
    assert file.read_bytes() == before


def test_a_text_that_is_not_there_is_refused_with_near_ones_and_the_command(file):
    sentence = refused("own.safetensors has no vector of the text 'ones'; similar texts: 'one', 'two'", file, "ones")
    assert sentence.endswith("surgfl text-vectors --file my-vectors.safetensors ones")
    assert "'site a'" in refused("no vector", file, "site a") and "'it is'\"'\"'s'" not in sentence
    assert refused("no vector", file, "it's").endswith("""'it'"'"'s'""")


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(file, tmp_path):
    refused("nowhere.safetensors is not a file of text vectors", tmp_path / "nowhere.safetensors")
    (tmp_path / "vectors.pt").write_bytes(file.read_bytes())
    refused("vectors.pt is not a file of text vectors", tmp_path / "vectors.pt")
    with pytest.raises(ValueError, match=r"text vectors need a \.safetensors file"):
        add_vectors(tmp_path / "vectors.json", [vector("one", 1.0)])


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_file_that_is_cut_short_is_refused(file, keep):
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"own\.safetensors: is damaged; copy it again", file)


HEADER_OF_TWO = json.dumps(FACTS)


@pytest.mark.parametrize(("values", "header", "words"), [
    *((torch.ones(2, 2), text, "(has no header of text vectors|its header is damaged)")
      for text in (None, "{", "[]", "3", '{"texts": ["one", "two"]}')),  # None is that of a network's weights
    *((torch.ones(2, 2), json.dumps(FACTS | change), "its header is damaged") for change in (
        {"texts": ["one", "one"]}, {"texts": ["one", 2]}, {"texts": 3}, {"sha256": 3}, {"more": ""})),
    *((torch.ones(shape), HEADER_OF_TWO, "does not contain one vector per text of its header")
      for shape in ((3, 2), (2,), (2, 2, 1), (2, 0))),
    *((torch.tensor([[1.0, 2.0], [3.0, number]]), HEADER_OF_TWO, "a vector has numbers that are NaN or infinite")
      for number in (math.nan, math.inf)),
])  # fmt: skip
def test_a_file_of_other_contents_is_refused(file, values, header, words):
    save_file({TENSOR: values}, file, metadata=header and {HEADER: header})
    refused(rf"own\.safetensors.*{words}", file)


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
    monkeypatch.setattr("shared_components.commands._text_vectors.known_texts", lambda: ("a", "b"))
    own = tmp_path / "own.safetensors"
    assert main(["text-vectors", "--known", "--folder", str(sentence_folder), "--file", str(own)]) == 0
    assert read_vectors(own).texts == ("a", "b") and read_vectors(own).kind == "sentence"


@pytest.mark.parametrize("words, sentence", [
    (["site a"], "name the file that gets the vectors, such as --file"),
    (["site a", "--file", "OWN", "--encoder", "clip"], "--encoder clip needs --folder"),
    (["site a", "", "--file", "OWN", "--encoder", "clip", "--folder", "CLIP"], "the site's text is ''"),
    (["--file", "OWN"], "is not a file of text vectors"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(words, sentence, clip_folder, tmp_path, capsys):
    own = tmp_path / "own.safetensors"
    names = {"OWN": str(own), "CLIP": str(clip_folder)}
    assert main(["text-vectors", *[names.get(word, word) for word in words]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("surgfl text-vectors: ") and sentence in error and error.count("\n") == 1
    assert not own.exists()
