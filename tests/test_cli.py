"""The command line: its list of commands, misspelt commands, and its imports: no torch."""

import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest

from shared_components.cli import COMMANDS, GROUPS, build_parser, listed, main
from shared_components.commands import methods
from shared_components.flare.deployment.submission import LATEST

MODULES = ("torch", "numpy", "cv2", "nvflare", "jinja2", "nibabel", "shared_components.commands")
PROGRAM = """
import sys
from shared_components.cli import main
try:
    main({words})
finally:
    print(*[name for name in {modules} if name in sys.modules])
"""


def run(words):
    program = PROGRAM.format(words=words, modules=MODULES)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["no-command"], [], ["segment", "--help"]])
def test_help_version_and_errors_import_nothing_heavy(words):
    done = run(words)
    *output, imported = done.stdout.splitlines()
    assert imported == ("shared_components.commands" if "segment" in words else "")
    assert output or done.returncode == 2
    if words == ["--help"]:
        assert all(path.stem.replace("_", "-") in done.stdout for path in COMMANDS.glob("[!_]*.py"))


def test_the_options_of_no_command_and_so_the_completion_need_pytorch():
    words = ["completion", "bash"]
    done = run(words)
    *script, imported = done.stdout.splitlines()
    assert "_surgfl() {" in script and not {"torch", "nvflare", "jinja2", "nibabel"} & set(imported.split())


def test_only_the_chosen_command_is_imported_and_all_have_the_same_help():
    """A command with options besides --help was imported."""
    whole, chosen = (build_parser(only)._actions[-1].choices for only in (None, "segment"))
    descriptions = {name: child.description for name, child in whole.items()}
    assert descriptions == {name: child.description for name, child in chosen.items()}
    assert all(len(child._actions) > 1 for child in whole.values())
    assert [name for name, child in chosen.items() if len(child._actions) > 1] == ["segment"]


def test_every_command_is_listed_once_and_those_of_no_group_come_last(capsys):
    parser = build_parser()
    commands = parser.get_default("commands")
    lines = parser.format_help().splitlines()
    assert all(sum(line.startswith(f"  {name} ") for line in lines) == 1 for name in commands)
    named = [name for names in GROUPS.values() for name in names]
    assert len(named) == len(set(named)) and set(named) - {"train"} <= set(commands)
    order = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in commands]
    assert order[:2] == ["segment", "onnx"] or order[:2] == ["segment", "train"]
    text = listed({"segment": "Show.", "later": "Do it " + "again and " * 20})
    assert text.splitlines()[:3] == ["Use a model:", "  segment            Show.", "Others:"]
    assert text.splitlines()[3].startswith("  later              Do it again")
    assert all(line.startswith(" " * 21) for line in text.splitlines()[4:])


def test_an_interruption_is_one_word(monkeypatch, capsys):
    monkeypatch.setattr(methods, "run", Mock(side_effect=KeyboardInterrupt))
    assert main(["methods"]) == 130 and capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(("word", "hint"), [("segmnt", "did you mean 'segment'? "), ("xyz", "")])
def test_a_misspelt_command_is_answered_with_the_nearest(word, hint, capsys):
    with pytest.raises(SystemExit) as end:
        main([word, "--out", "x"])
    assert end.value.code == 2
    assert f"there is no command {word!r}; {hint}`surgfl --help` lists them" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "options"), [("bash", ["-c"]), ("zsh", ["-f", "-c"])])
def test_a_shell_completes_commands_options_and_their_values(shell, options):
    """The shell runs without SurgFL on its path; zsh filters words by their beginning in its editor."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run([sys.executable, "-m", "shared_components.cli", "completion", shell], capture_output=True)
    setup = script.stdout.decode() + ("emulate ksh\n" if shell == "zsh" else "")  # as its line editor calls a function
    lines = {
        "seg": "segment", "segment --back": "--backend", "segment a.mp4 --backend o": "openvino onnx", "site i": "init",
    }  # fmt: skip
    for words, completions in lines.items():
        line = ["surgfl", *words.split()]
        call = f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(line) - 1}; _surgfl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run([shell, *options, f"{setup}\n{call}"], capture_output=True, text=True)
        offered = done.stdout.split()
        if shell == "zsh":
            offered = [word for word in offered if word.startswith(line[-1])]
        assert (offered, done.stderr) == (completions.split(), ""), words


def test_resuming_a_job_without_a_value_takes_the_newest_run():
    args = build_parser("job").parse_args(["job", "submit", "fedavg", "--admin", "kit", "--resume"])
    assert args.resume == LATEST
