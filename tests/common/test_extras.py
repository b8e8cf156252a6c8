"""The extras of setup.cfg bring what a plain installation lacks, and a command says which one."""

import configparser
import re
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import surgfl
from shared_components import cli
from shared_components.common import extras

ROOT = Path(__file__).parents[2]


def requirements(text):
    return {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for line in text.splitlines() if line}


def test_the_named_extra_brings_the_module_and_a_plain_installation_does_not():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    plain, brought = requirements(setup["options"]["install_requires"]), setup["options.extras_require"]
    distributions = packages_distributions()
    for extra, modules in extras.EXTRAS.items():
        named = {distributions[module][0].lower().replace("_", "-") for module in modules}
        assert named == requirements(brought[extra]) and not named & plain
    everything = re.search(r"^-e \.\[(.*)\]$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert everything and set(everything[1].split(",")) == set(brought)


@pytest.mark.parametrize(("module", "sentence"), [
    ("nvflare.apis", "surgfl job: nvflare is not installed; run: pip install 'surgfl[fl]'\n"),
    ("fcntl", "surgfl job: file locks work only on Linux and macOS; on Windows run this in WSL\n"),
])  # fmt: skip
def test_a_command_without_what_it_needs_says_the_remedy_in_one_sentence(module, sentence, monkeypatch, capsys):
    def build(only):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "build_parser", build)
    assert cli.main(["job", "list"]) == 2
    assert capsys.readouterr().err == sentence


def test_a_module_that_no_extra_brings_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(cli, "build_parser", lambda only: __import__("no_such_module"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        cli.main(["job"])


def test_python_gets_the_same_sentence_before_anything_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == "tensorboard" else name)
    for call in (lambda: surgfl.compare(["local"], out=tmp_path), lambda: surgfl.simulate("fedavg", {}, tmp_path)):
        with pytest.raises(ValueError, match=r"tensorboard is not installed.*pip install 'surgfl\[fl\]'"):
            call()
    assert not list(tmp_path.iterdir())
