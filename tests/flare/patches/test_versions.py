"""The helper of an upgrade finds the functions that another version of FLARE has changed."""

import sys
import zipfile
from pathlib import Path

import nvflare
import pytest

from evidence import flare_versions
from evidence.flare_versions import changes, function_source, open_wheel
from shared_components.flare.patches.replace import hash_text
from shared_components.flare.patches.versions import SOURCES, expected_source

INSTALLED = Path(nvflare.__file__).parents[1]
CHANGED = "nvflare.fuel.f3.cellnet.cell._is_server_job_cell"
GONE = "nvflare.private.fed.utils.app_deployer.AppDeployer.deploy"
FILES = ("nvflare/fuel/f3/cellnet/cell.py", "nvflare/private/fed/utils/app_deployer.py")


def read(name):
    return (INSTALLED / name).read_text("utf-8") if (INSTALLED / name).is_file() else None


@pytest.mark.parametrize("path", SOURCES)
def test_a_source_in_a_file_has_the_hash_of_the_function_that_runs(path):
    assert hash_text(function_source(read, path)) == expected_source(path, nvflare.__version__)


def later(name):
    """Return the installed module, but a function is other and a class has lost one."""
    text = read(name)
    if name == FILES[0]:
        return text.replace("return len(path) >= 2 and", "return len(path) > 2 and")
    return text.replace("def deploy(", "def deploy_app(") if name == FILES[1] else text


def test_changed_and_missing_functions_are_found_and_others_are_not():
    differences = dict(changes(read, later))
    assert differences.keys() == {CHANGED, GONE} and differences[GONE] == ""
    lines = differences[CHANGED].splitlines()
    assert "-    return len(path) >= 2 and path[0] == FQCN.ROOT_SERVER" in lines
    assert "+    return len(path) > 2 and path[0] == FQCN.ROOT_SERVER" in lines
    assert not function_source(read, "nvflare.cli.none") and not function_source(read, "elsewhere.cli.run")


def test_the_command_prints_the_diffs_and_the_new_entries_of_two_wheels(tmp_path, monkeypatch, capsys):
    files = {"/".join(path.split(".")[:length]) + ".py" for path in SOURCES for length in range(2, 9)}
    files.add("nvflare/fuel/f3/streaming/stream_utils.py")  # byte_streamer imports a function of it
    for name, source in (("old", read), ("new", later)):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as wheel:
            for file in files:
                if (text := source(file)) is not None:
                    wheel.writestr(file, text)
    old, new = (str(tmp_path / f"{name}.whl") for name in ("old", "new"))
    monkeypatch.setattr(sys, "argv", ["flare_versions", new, "--before", old])
    assert flare_versions.main() == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"2 of {len(SOURCES)} functions differ") and "+    return len(path) > 2" in printed
    assert f'"{hash_text(function_source(open_wheel(new, tmp_path), CHANGED))}",' in printed
    assert "has no such function: adapt the protection" in printed
