"""YAML of a person is read as PyYAML reads it; what would stall or end a program is one sentence."""

import time

import pytest
import yaml

from shared_components.common.plain_yaml import MOST_LEVELS, MOST_NODES, YamlError, read_yaml


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 1\nb: [x, 2.5, null, true, 2026-11-22]\nc: {d: {e: f}}",
        "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nthird: *base",
        "|\n  several\n  lines\n",
        "[" * MOST_LEVELS + "]" * MOST_LEVELS,
    ],
)
def test_what_a_person_writes_is_read_as_pyyaml_reads_it(text):
    assert read_yaml(text) == yaml.safe_load(text)


def test_a_list_may_be_a_key():
    assert read_yaml("{[255, 0, 0]: shaft}") == {(255, 0, 0): "shaft"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not valid YAML ("),
        ("a: *nowhere", "is not valid YAML (found undefined alias"),
        ("--- 1\n--- 2", "is not valid YAML ("),
        ("a\0b", "is not valid YAML ("),
        ("!!python/object:os.system {}", "is not valid YAML (could not determine a constructor"),
        ("a: {b: 1, b: 2}", "key 'b' is given twice (again in line 1)"),
        ("- {[1, 2]: a, [1, 2]: b}", "is given twice (again in line 1)"),
        ("{a: 1}: 2", "has a mapping or a list of lists for a key in line 1"),
        ("\n? [[1], 2]\n: 3", "has a mapping or a list of lists for a key in line 2"),
        ("a: 2026-13-45", "holds a value that cannot be read (month must be in 1..12"),
        ("a: !!bool perhaps", "holds a value that cannot be read ("),
        ("a: !!timestamp noon", "holds a value that cannot be read ("),
        ("a: " + "9" * 5000, "holds a value that cannot be read ("),
        ("a: &x [*x]", "refers to itself (*x); write"),
        ("a: &x\n  b: {c: *x}", "refers to itself (*x); write"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), f"nests lists or mappings more than {MOST_LEVELS} deep"),
        ("[" * 100_000, "nests lists or mappings more than"),
        ("{a: " * 5000, "nests lists or mappings more than"),
        ("- " * 5000 + "1", "nests lists or mappings more than"),
        ("? " * 5000 + "1", "nests lists or mappings more than"),
        ("[" + "1," * MOST_NODES + "]", f"holds more than {MOST_NODES} values"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(text, said):
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
    with pytest.raises(YamlError, match=f"holds more than {MOST_NODES} values|deep"):
        read_yaml("\n".join(lines))
    assert time.monotonic() - began < 2
