"""The list of commands, and what is said to a misspelt one."""

import pytest

from shared_components.cli import GROUPS, build_parser, listed, main


def test_every_command_is_listed_once_and_no_group_names_another(capsys):
    parser = build_parser()
    commands = parser.get_default("commands")
    lines = parser.format_help().splitlines()
    assert all(sum(line.startswith(f"  {name} ") for line in lines) == 1 for name in commands)
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named)) and set(named) - {"train"} <= set(commands)
    order = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in commands]
    assert order[:2] == ["segment", "onnx"] or order[:2] == ["segment", "train"]


def test_a_command_of_no_group_comes_last():
    text = listed({"segment": "Show.", "later": "Do it " + "again and " * 20})
    assert text.splitlines()[:3] == ["Use a model:", "  segment            Show.", "Others:"]
    assert text.splitlines()[3].startswith("  later              Do it again")
    assert all(line.startswith(" " * 21) for line in text.splitlines()[4:])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("segmnt", "there is no command 'segmnt'; did you mean 'segment'? `surgfl --help` lists them"),
        ("xyz", "there is no command 'xyz'; `surgfl --help` lists them"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(word, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        main([word, "--out", "x"])
    assert end.value.code == 2 and sentence in capsys.readouterr().err
