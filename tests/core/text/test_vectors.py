"""Files of vectors: what was put in comes out, and what is another file is named."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

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


def test_what_is_put_in_comes_out(file):
    found = read_vectors(file).encode("two")
    assert torch.equal(found.values, torch.tensor([0.1, -3.0]))
    assert (found.kind, found.model, found.sha256, found.text) == ("clip", "tiny", "ab" * 32, "two")
    assert read_vectors(str(file)).encode(" two\n").text == "two"


def test_vectors_are_added_and_replaced(file):
    add_vectors(file, [vector("drei süß", 5.0, 6.0), vector("one", 7.0, 8.0)])
    found = read_vectors(file)
    assert found.texts == ("one", "two", "drei süß")
    assert found.values.tolist() == [[7, 8], [pytest.approx(0.1), -3], [5, 6]]


def test_a_file_is_the_same_bytes_each_time(file, tmp_path):
    again = tmp_path / "again.safetensors"
    add_vectors(again, [vector("one", 1.0, 2.0), vector("two", 0.1, -3.0)])
    assert again.read_bytes() == file.read_bytes()
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])  # the layout of safetensors, read without the library
    header = json.loads(raw[8 : 8 + length])
    assert json.loads(header["__metadata__"][HEADER]) == FACTS
    assert struct.unpack("<4f", raw[8 + length :]) == pytest.approx((1, 2, 0.1, -3))


@pytest.mark.parametrize(
    "other", [{"model": "large"}, {"sha256": "cd" * 32}, {"values": (1.0, 2.0, 3.0)}], ids=["model", "hash", "width"]
)
def test_a_file_holds_the_vectors_of_one_encoder(file, other):
    before = file.read_bytes()
    values = other.pop("values", (1.0, 2.0))
    with pytest.raises(ValueError, match=r"a file holds vectors of one encoder, not of .* and .*; use another file"):
        add_vectors(file, [vector("three", *values, **other)])
    assert file.read_bytes() == before


def test_a_text_that_is_not_there_is_refused_with_near_ones_and_the_command(file):
    sentence = refused("own.safetensors has no vector of the text 'ones'; near are 'one', 'two'", file, "ones")
    assert sentence.endswith("surgfl text-vectors --file my-vectors.safetensors ones")
    assert "'site a'" in refused("no vector", file, "site a") and "'it is'\"'\"'s'" not in sentence
    assert refused("no vector", file, "it's").endswith("""'it'"'"'s'""")


@pytest.mark.parametrize("text", ["", "  ", None, 7])
def test_an_empty_text_is_refused(file, text):
    refused("the site's text is", file, text)


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(file, tmp_path):
    refused("nowhere.safetensors is no file of text vectors", tmp_path / "nowhere.safetensors")
    (tmp_path / "vectors.pt").write_bytes(file.read_bytes())
    refused("vectors.pt is no file of text vectors", tmp_path / "vectors.pt")
    with pytest.raises(ValueError, match=r"text vectors are kept in a \.safetensors file"):
        add_vectors(tmp_path / "vectors.json", [vector("one", 1.0)])


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_file_that_is_cut_short_is_refused(file, keep):
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"own\.safetensors: is damaged; copy it again", file)


def test_weights_of_a_network_are_no_vectors(file):
    save_file({"a": torch.ones(2)}, file)
    refused(r"own\.safetensors: is no file of text vectors by its header", file)


@pytest.mark.parametrize(
    "facts", ["{", "[]", "3", json.dumps({**FACTS, "texts": 3}), json.dumps({"texts": ["one", "two"]})]
)
def test_another_header_is_refused(file, facts):
    save_file(load_file(file), file, metadata={HEADER: facts})
    refused(r"own\.safetensors: (is no file of text vectors by its header|its header is damaged)", file)


@pytest.mark.parametrize("change", [{"texts": ["one", "one"]}, {"texts": ["one", 2]}, {"sha256": 3}, {"more": ""}])
def test_a_damaged_header_is_refused(file, change):
    save_file(load_file(file), file, metadata={HEADER: json.dumps({**FACTS, **change})})
    refused("its header is damaged", file)


@pytest.mark.parametrize("shape", [(3, 2), (2,), (2, 2, 1), (2, 0)])
def test_vectors_that_are_not_one_per_text_are_refused(file, shape):
    save_file({TENSOR: torch.ones(shape)}, file, metadata={HEADER: json.dumps(FACTS)})
    refused("does not hold one vector per text of its header", file)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(file, number):
    save_file({TENSOR: torch.tensor([[1.0, 2.0], [3.0, number]])}, file, metadata={HEADER: json.dumps(FACTS)})
    refused("own.safetensors: a vector has numbers that are NaN or infinite", file)
