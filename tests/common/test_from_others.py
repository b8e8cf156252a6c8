"""Text from others reaches no terminal and no table as it came, their YAML stalls nothing, and nothing of it is run."""

import io
import logging
import time

import pytest
import yaml
from monai.bundle import ConfigParser

from shared_components.common.plain_yaml import MOST_LEVELS, MOST_NODES, YamlError, read_yaml
from shared_components.common.progress_display import Board
from shared_components.common.reject_code import DEEPEST, is_expression, refuse_code
from shared_components.common.sanitise import is_plain, one_line, printable, table_cells
from shared_components.flare.console import LogConsole
from shared_components.flare.patches import final_message
from shared_components.reporting.tables import Table, as_markdown, as_text

FORGED = "shaft\x1b[2J\x1b]0;title\x07\r\nround 2/2  site-1  Dice 1.000\u202e\x9b31m"
MEANT = "shaft round 2/2 site-1 Dice 1.00031m"


@pytest.mark.parametrize("text, good", [
    ("shaft", True), ("Fläche, 鉗子 (2)", True), ("", False), ("a\nb", False), ("a\u2028b", False),
    ("\x1b[31mred", False), ("\u202eevil", False), ("\ud800", False), ("x" * 101, False), (3, False), (None, False),
])  # fmt: skip
def test_a_name_prints_as_it_reads(text, good):
    assert is_plain(text) is good


def test_a_sentence_is_bounded_to_one_line_and_our_own_line_breaks_stay():
    assert one_line(FORGED) == MEANT
    assert one_line("a  b") == "a  b"  # what prints as it reads stays
    assert one_line("x" * 10**7, 20) == "x" * 17 + "..."
    assert printable("head\n----\n1\t2") == "head\n----\n1\t2"
    text = printable(FORGED)
    assert "\n" in text and not set(text) & set("\x1b\r\x07\x9b\u202e")


def test_no_way_to_the_terminal_lets_an_escape_through(capsys, caplog):
    out = io.StringIO()
    Board(out, read=dict).say(FORGED)
    final_message.say(FORGED, first=lambda: None)
    final_message._print()
    with caplog.at_level(logging.INFO):
        LogConsole().say(FORGED)
    lines = [record.getMessage() for record in caplog.records]
    assert not any("\n" in line for line in lines), "each line of ours is a record of its own"
    for text in (out.getvalue(), capsys.readouterr().err, "\n".join(lines)):
        assert "shaft" in text and not set(text) & set("\x1b\r\x07\x9b\u202e")


@pytest.mark.parametrize("write", [as_text, as_markdown])
def test_a_cell_cannot_forge_a_row_of_a_table(write):
    table = Table("t", ("site", FORGED), (("site-1", "1"), (FORGED, "2")))
    honest = Table("t", ("site", "shaft"), (("site-1", "1"), ("shaft", "2")))
    assert len(write(table).splitlines()) == len(write(honest).splitlines())
    assert "\x1b" not in write(table) and MEANT in write(table)


@pytest.mark.parametrize("cell, expected", [
    ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"), ("+1+1", "'+1+1"), ("-2+3", "'-2+3"), ("@SUM(A1)", "'@SUM(A1)"),
    ("\t=1", "'\t=1"), ("\r=1", "'\r=1"), ("-", "'-"), ("-0.5", "-0.5"), ("+1e-05", "+1e-05"), ("-inf", "-inf"),
    (-3, -3), (-0.5, -0.5), (None, None), ("", ""), ("shaft", "shaft"), ("a=b", "a=b"),
])  # fmt: skip
def test_a_cell_of_a_table_is_no_formula(cell, expected):
    """The beginnings are those of OWASP's page on CSV injection."""
    assert table_cells([cell]) == [expected]


@pytest.mark.parametrize("text", [
    "", "a: 1\nb: [x, 2.5, null, true, 2026-11-22]\nc: {d: {e: f}}",
    "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nthird: *base", "|\n  several\n  lines\n",
    "[" * MOST_LEVELS + "]" * MOST_LEVELS,
])  # fmt: skip
def test_what_a_person_writes_is_read_as_pyyaml_reads_it_and_a_list_may_be_a_key(text):
    assert read_yaml(text) == yaml.safe_load(text)
    assert read_yaml("{[255, 0, 0]: shaft}") == {(255, 0, 0): "shaft"}


@pytest.mark.parametrize(("text", "said"), [
    ("[", "is not valid YAML ("), ("a: *nowhere", "is not valid YAML (found undefined alias"),
    ("--- 1\n--- 2", "is not valid YAML ("), ("a\0b", "is not valid YAML ("),
    ("!!python/object:os.system {}", "is not valid YAML (could not determine a constructor"),
    ("a: {b: 1, b: 2}", "key 'b' is given twice (again in line 1)"),
    ("- {[1, 2]: a, [1, 2]: b}", "is given twice (again in line 1)"),
    ("{a: 1}: 2", "has a mapping or a list of lists as a key in line 1"),
    ("\n? [[1], 2]\n: 3", "has a mapping or a list of lists as a key in line 2"),
    ("a: 2026-13-45", "contains a value that cannot be read (month must be in 1..12"),
    ("a: !!bool perhaps", "contains a value that cannot be read ("),
    ("a: !!timestamp noon", "contains a value that cannot be read ("),
    ("a: " + "9" * 5000, "contains a value that cannot be read ("), ("a: &x [*x]", "refers to itself (*x); write"),
    ("a: &x\n  b: {c: *x}", "refers to itself (*x); write"),
    ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), f"nests lists or mappings more than {MOST_LEVELS} deep"),
    ("[" * 100_000, "nests lists or mappings more than"), ("{a: " * 5000, "nests lists or mappings more than"),
    ("- " * 5000 + "1", "nests lists or mappings more than"), ("? " * 5000 + "1", "nests lists or mappings more than"),
    ("[" + "1," * MOST_NODES + "]", f"contains more than {MOST_NODES} values"),
])  # fmt: skip
def test_yaml_that_cannot_be_read_is_one_sentence(text, said):
    with pytest.raises(YamlError) as error:
        read_yaml(text)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_levels_count_through_what_is_referred_to():
    deep = "\n".join(f"- &a{n} " + "[" * 9 + (f"*a{n - 1}" if n else "") + "]" * 9 for n in range(MOST_LEVELS))
    with pytest.raises(YamlError, match="deep; write it flatter"):
        read_yaml(deep)


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ("{k: ", "}")])
def test_a_billion_laughs_are_refused_at_once(opened, closed):
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for n in range(1, 20):
        inside = ", ".join([f"*a{n - 1}"] * 9) if opened == "[" else f"[{', '.join([f'*a{n - 1}'] * 9)}]"
        lines.append(f"a{n}: &a{n} {opened}{inside}{closed}")
    began = time.monotonic()
    with pytest.raises(YamlError, match=f"contains more than {MOST_NODES} values|deep"):
        read_yaml("\n".join(lines))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("value", [
    {"mode": "$import os"}, {"mode": " $__import__('os').system('true')"}, {"a": {"b": ["plain", "@network"]}},
    {"a": "%train.yaml::lr"}, {"a": "{$HOME}"}, {"a": "${HOME}"}, {"_target_": "os.system", "command": "true"},
    {"a": [{"_requires_": "$open('x', 'w')"}]}, {"a": {"_disabled_": "false"}}, {"logging_file": "logging.conf"},
    {"x": {"path": "os.system", "args": {}}}, {"x": {"class_path": "os.system"}}, {"$exit()": 1},
])  # fmt: skip
def test_what_would_run_is_refused_wherever_it_lies(value):
    with pytest.raises(ValueError, match=r"^job: arguments[^\n]* (is the expression|names code)"):
        refuse_code(value, "job: arguments")


def test_names_and_numbers_pass_and_values_that_nest_too_deep_are_not_walked_to_their_end():
    plain = {"mode": "corrected", "rate": 1e-3, "none": None, "yes": True, "parts": ["encoder", "head.0"]}
    refuse_code(plain | {"50%": "a@b $"}, "job")
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match=f"nested deeper than {DEEPEST} levels"):
        refuse_code(deep, "x")


@pytest.mark.parametrize("text", ["$1 + 1", "@other", "%other"])
def test_monai_itself_puts_something_else_in_the_place_of_these(text):
    """The independent reference: MONAI's own parser returns another value than the text for each."""
    parser = ConfigParser({"a": text, "other": 3, "plain": "3"})
    parser.parse()
    assert is_expression(text) and parser.get_parsed_content("a") != text
    assert not is_expression("3") and parser.get_parsed_content("plain") == "3"
