"""The command line: its list of commands, what is said to a misspelt one, and what it imports: no torch."""

import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest

from shared_components.cli import COMMANDS, GROUPS, build_parser, listed, main
from shared_components.commands import methods

ASKED = """
import sys
from shared_components.cli import main
try:
    main({words})
finally:
    print(*[name for name in ("torch", "numpy", "cv2", "shared_components.commands") if name in sys.modules])
"""


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["no-command"], []])
def test_what_is_asked_of_surgfl_itself_imports_nothing_heavy(words):
    done = subprocess.run([sys.executable, "-c", ASKED.format(words=words)], capture_output=True, text=True)
    *said, imported = done.stdout.splitlines()
    assert imported == "" and (said or done.returncode == 2)
    if words == ["--help"]:
        assert all(path.stem.replace("_", "-") in done.stdout for path in COMMANDS.glob("[!_]*.py"))


def test_a_command_is_told_of_the_same_help_whether_it_is_imported_or_not():
    """`configure` has run where a command has an option besides --help."""
    whole, alone = (build_parser(only)._actions[-1] for only in (None, "segment"))
    assert whole.choices.keys() == alone.choices.keys()
    assert {name: child.description for name, child in whole.choices.items()} == {
        name: child.description for name, child in alone.choices.items()
    }
    assert all(len(child._actions) > 1 for child in whole.choices.values())
    assert [name for name, child in alone.choices.items() if len(child._actions) > 1] == ["segment"]


def test_every_command_is_listed_once_and_no_group_names_another(capsys):
    parser = build_parser()
    commands = parser.get_default("commands")
    lines = parser.format_help().splitlines()
    assert all(sum(line.startswith(f"  {name} ") for line in lines) == 1 for name in commands)
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named)) and set(named) - {"train"} <= set(commands)
    order = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in commands]
    assert order[:2] == ["segment", "onnx"] or order[:2] == ["segment", "train"]


def test_an_interruption_is_one_word(monkeypatch, capsys):
    monkeypatch.setattr(methods, "run", Mock(side_effect=KeyboardInterrupt))
    assert main(["methods"]) == 130 and capsys.readouterr().err == "interrupted\n"


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


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "options"), [("bash", ["-c"]), ("zsh", ["-f", "-c"])])
def test_a_shell_completes_commands_options_and_their_values(shell, options):
    """The shell itself is asked, without SurgFL on its path; zsh filters words by their beginning in its editor."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run([sys.executable, "-m", "shared_components.cli", "completion", shell], capture_output=True)
    setup = script.stdout.decode() + ("emulate ksh\n" if shell == "zsh" else "")  # as its line editor calls a function
    asked = {
        "seg": "segment",
        "segment --back": "--backend",
        "segment a.mp4 --backend o": "openvino onnx",
        "site i": "init",
    }
    for words, found in asked.items():
        line = ["surgfl", *words.split()]
        told = f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; _surgfl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run([shell, *options, f"{setup}\n{told}"], capture_output=True, text=True)
        offered = done.stdout.split()
        if shell == "zsh":
            offered = [word for word in offered if word.startswith(line[-1])]
        assert (offered, done.stderr) == (found.split(), ""), words
