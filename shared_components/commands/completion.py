"""`surgfl completion SHELL`: print a script that completes commands, options and their values in a shell."""

import argparse
from collections.abc import Iterator, Sequence

HELP = 'print a script that completes commands and options: eval "$(surgfl completion bash)" in ~/.bashrc'
_SCRIPT = """\
_surgfl() {
  local words before=" ${COMP_WORDS[*]:1:$((COMP_CWORD - 1))} "
  case "$before" in
%s
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o bashdefault -o default -F _surgfl surgfl
"""
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="bash, or zsh with bashcompinit")


def run(args: argparse.Namespace) -> int:
    """Print the script with the commands of this version; the shell completes without running SurgFL."""
    cases = "\n".join(f"    {pattern}) words='{' '.join(words)}' ;;" for pattern, words in _cases(args.build_parser()))
    print((_ZSH if args.shell == "zsh" else "") + _SCRIPT % cases, end="")
    return 0


def _cases(parser: argparse.ArgumentParser, path: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield patterns of the line before the word to complete, narrow ones first, and the possible words."""
    before = " ".join(["", *path, ""])
    words: list[str] = []
    for action in parser._actions:  # argparse has no public list of arguments
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _cases(child, (*path, name))
        if action.choices and action.option_strings:
            for name in action.option_strings:
                yield f"'{before}'*' {name} '", [*map(str, action.choices)]
        words += action.option_strings or map(str, action.choices or ())
    yield f"'{before}'*", words
