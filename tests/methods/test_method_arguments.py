"""Every method refuses wrong arguments when it is built; methods are found by listing the folder."""

import importlib
import inspect
import re

import pytest
import torch

from shared_components.core.aggregators.hypernetwork import LARGEST_SEED
from shared_components.core.method import load_method, method_names

NUMBERS = {"int", "float", "int | None", "float | None"}


def arguments(*kinds):
    """Return (method, argument) for every keyword argument of one of these annotations."""
    found = []
    for method in method_names():
        build = importlib.import_module(f"shared_components.methods.{method}").build
        for name, parameter in inspect.signature(build).parameters.items():
            if parameter.annotation in kinds:
                found.append((method, name))
    return found


def refuses(method, name, value):
    with pytest.raises(ValueError, match=rf"^{method}: {name} (is )?(the text )?{re.escape(repr(value))}"):
        load_method(method, **{name: value})


def test_every_argument_is_of_a_kind_that_is_checked_here():
    known = NUMBERS | {"bool", "str", "Sequence[str]", "Sequence[str] | None"}
    for method in method_names():
        build = importlib.import_module(f"shared_components.methods.{method}").build
        for name, parameter in inspect.signature(build).parameters.items():
            assert parameter.annotation in known, f"{method} {name}: {parameter.annotation}"
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{method} {name}"
    assert len(arguments(*NUMBERS)) > 40


@pytest.mark.parametrize("method, name", arguments(*NUMBERS))
def test_numbers_are_finite_and_neither_text_nor_truth_values(method, name):
    for value in (float("nan"), float("inf"), float("-inf"), "1", "", True, False, [1]):
        refuses(method, name, value)


@pytest.mark.parametrize("method, name", arguments("int", "float"))
def test_none_is_refused_where_it_stands_for_nothing(method, name):
    refuses(method, name, None)


@pytest.mark.parametrize("method, name", arguments("int", "int | None"))
def test_counts_are_whole_numbers(method, name):
    refuses(method, name, 2.0)


@pytest.mark.parametrize("method, name", arguments("bool"))
def test_truth_values_are_no_text_and_no_number(method, name):
    for value in ("false", 0, 1, None):
        refuses(method, name, value)


@pytest.mark.parametrize("method, name", arguments("Sequence[str]", "Sequence[str] | None"))
def test_lists_of_names_are_no_text(method, name):
    for value in ("encoder", [1]) if method == "fedbn" else ("encoder", None, [1]):
        refuses(method, name, value)


@pytest.mark.parametrize(
    "method, name, value, words",
    [
        ("fedas", "personal", [], "names no module"),
        ("fedbn", "norms", [], "names no module"),
        ("fedbn", "norms", ["instance"], "instance"),
        ("fedhca2", "encoder", [], "names no module"),
        ("fedper", "personal", [], "names no module"),
        ("mat_fl", "shared", [], "names no module"),
        ("pfedsis", "personal", ["queries"], "queries"),
        ("pfedsis", "personal", ["q"], "add 'decoder'"),
    ],
)
def test_lists_that_are_empty_or_hold_unknown_names_are_refused(method, name, value, words):
    with pytest.raises(ValueError, match=words):
        load_method(method, **{name: value})


@pytest.mark.parametrize("method, name", arguments("str"))
def test_choices_are_named(method, name):
    for value in ("nonsense", None, 1):
        refuses(method, name, value)


@pytest.mark.parametrize("method", method_names())
def test_the_defaults_are_in_their_ranges(method):
    load_method(method)


# methods, arguments, values in their range (its ends among them), values out of it
TABLE = [
    ("cd2_pfed", "personal_share", [0, 0.9], [-0.1, 1]),
    ("cd2_pfed", "strength", [0, 5.0], [-0.1]),
    ("cd2_pfed", "ramp_rounds", [1], [0]),
    ("ditto", "strength", [0], [-1e-9]),
    ("fedadam", "learning_rate", [1e-6, 2], [0]),
    ("fedadam", "beta_1 beta_2", [0, 0.99], [-0.1, 1]),
    ("fedadam", "tau", [1e-9], [0]),
    ("fedas", "alignment_rate", [0], [-1]),
    ("fedas", "largest_weight", [0.1, 1], [0, 1.1]),
    ("fedavgm", "momentum", [0, 0.9], [-0.1, 1]),
    ("fedavgm", "learning_rate", [0.1], [0]),
    ("feddp", "fine_tune_from", [None, 1], [0]),
    ("feddp", "strength", [0], [-1]),
    ("fedhca2", "conflict momentum", [0, 0.9], [-0.1, 1]),
    ("fedhca2", "alpha beta", [0, 1], [-0.1, 1.1]),
    ("fedhca2", "hyper_rate weight_decay", [0], [-1]),
    ("fedld", "margin", [0], [-1]),
    ("fedld", "keep", [0.1, 1], [0, 1.1]),
    ("fedld", "decay", [0, 1], [-0.1, 1.1]),
    ("fedprox", "mu", [0], [-1e-9]),
    ("fedrep", "head_share", [0.01, 0.99], [0, 1]),
    ("fedsam", "rho eta", [0], [-1]),
    ("fedsam", "average_from", [None, 0], [-1]),
    ("fedsam", "average_cycle", [1], [0]),
    ("fedseg", "temperature", [0.01], [0, -0.07]),
    ("fedseg", "weight", [0], [-1]),
    ("fedseg", "anchors prototype_images", [1], [0]),
    ("fedst", "batches", [1], [0]),
    ("fedst", "pretraining descriptor_weight representation_weight", [0], [-1]),
    ("fedst", "average", [0, 0.99], [-0.1, 1]),
    ("fedst", "rate pretraining_rate", [0.1], [0, -1]),
    ("fedst", "descriptor_rate", [0, 1], [-0.1, 1.1]),
    ("fedst", "seed", [0, 2**64], [-1]),
    ("krum multi_krum", "faults", [0], [-1]),
    ("mat_fl", "clusters", [1], [0, -1]),
    ("mat_fl", "threshold", [0], [-0.1]),
    ("multi_krum", "keep", [None, 1], [0]),
    ("norm_bound", "times", [None, 0.1], [0, -1]),
    ("pfedla pfedsis", "hypernetwork_rate", [0], [-1]),
    ("pfedla pfedsis", "seed", [0, 2**32 - 1], [-1, 2**32]),
    ("pfedsis", "sensitivity_images", [1], [0, -1]),
    ("pfedsis", "sensitivity_temperature", [0.01], [0, -1]),
    ("pfedsis", "cross_style_share", [0.01, 1], [0, 1.1]),
    ("qfedavg", "q", [0], [-1]),
    ("qfedavg", "learning_rate", [1e-3], [0]),
    ("qfedavg", "loss_images", [None, 1], [0]),
    ("trimmed_mean", "trim", [0], [-1]),
]
RANGES = [(m, n, *values) for methods, names, *values in TABLE for m in methods.split() for n in names.split()]


def test_every_number_has_its_range_in_this_list():
    assert sorted((method, name) for method, name, _, _ in RANGES) == sorted(arguments(*NUMBERS))


@pytest.mark.parametrize("method, name, inside, outside", RANGES)
def test_ranges_end_where_they_should(method, name, inside, outside):
    for value in inside:
        load_method(method, **{name: value})
    for value in outside:
        refuses(method, name, value)


def test_the_largest_seed_fits_the_generators():
    """A hypernetwork's seed is multiplied before it is used."""
    torch.Generator().manual_seed(LARGEST_SEED * 1_000_003 + 1000)
