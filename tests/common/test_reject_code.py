"""Whatever MONAI or FLARE would run instead of read is refused by its place."""

import pytest
from monai.bundle import ConfigParser

from shared_components.common.reject_code import DEEPEST, is_expression, refuse_code


@pytest.mark.parametrize(
    "value",
    [
        {"mode": "$import os"},
        {"mode": " $__import__('os').system('true')"},
        {"a": {"b": ["plain", "@network"]}},
        {"a": "%train.yaml::lr"},
        {"a": "{$HOME}"},
        {"a": "${HOME}"},
        {"_target_": "os.system", "command": "true"},
        {"a": [{"_requires_": "$open('x', 'w')"}]},
        {"a": {"_disabled_": "false"}},
        {"logging_file": "logging.conf"},
        {"x": {"path": "os.system", "args": {}}},
        {"x": {"class_path": "os.system"}},
        {"$exit()": 1},
    ],
)
def test_what_would_run_is_refused_wherever_it_lies(value):
    with pytest.raises(ValueError, match=r"^job: arguments[^\n]* (is the expression|names code)"):
        refuse_code(value, "job: arguments")


def test_names_and_numbers_pass():
    plain = {"mode": "corrected", "rate": 1e-3, "none": None, "yes": True, "parts": ["encoder", "head.0"]}
    refuse_code(plain | {"50%": "a@b $"}, "job")


@pytest.mark.parametrize("text", ["$1 + 1", "@other", "%other"])
def test_monai_itself_puts_something_else_in_the_place_of_these(text):
    """The independent reference: MONAI's own parser returns another value than the text for each."""
    parser = ConfigParser({"a": text, "other": 3, "plain": "3"})
    parser.parse()
    assert is_expression(text) and parser.get_parsed_content("a") != text
    assert not is_expression("3") and parser.get_parsed_content("plain") == "3"


def test_values_that_nest_too_deep_are_refused_and_not_walked_to_their_end():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match=f"nested deeper than {DEEPEST} levels"):
        refuse_code(deep, "x")
