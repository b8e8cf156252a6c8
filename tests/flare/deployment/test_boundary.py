"""A kit that has lost what restricts it is refused with a sentence; tests/production/test_kits.py starts such kits."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from shared_components.cli import main
from shared_components.flare import boundary
from shared_components.flare.boundary import RequireBoundary
from shared_components.flare.deployment.kits import BOUNDARY, CHECK, CODE, GUARD, PARTS, KitError, find_kit, secure
from tests.flare.simulator import edit

RESOURCES, RIGHTS, PRIVACY = "resources.json", "authorization.json", "privacy.json"
gone = Path.unlink


def holding(text):
    return lambda path: path.write_text(text)


def edited(change):
    return partial(edit, change=change)


def changed(**values):
    return edited(lambda before: before.update(values))


def guard(change):
    """Return what changes the entry of our guard, or removes it where ``change`` is None."""

    def apply(values):
        (ours,) = (one for one in values["components"] if one["path"] == GUARD)
        values["components"].remove(ours)
        if change is not None:
            values["components"].append(ours | change)

    return lambda path: edit(path, apply)


OPEN = {
    "only FLARE's default": (RESOURCES, gone, "no such file"),
    "empty": (RESOURCES, holding(""), "cannot be read"),
    "no JSON": (RESOURCES, holding('{"class_allow_list": ['), "cannot be read"),
    "no text": (RESOURCES, lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    "another value": (RESOURCES, holding("[]"), "contains no JSON object"),
    "nothing in it": (RESOURCES, holding("{}"), "class_list_enforcement_mode, class_allow_list, components"),
    "no list": (RESOURCES, edited(lambda values: values.pop("class_allow_list")), "class_allow_list"),
    "a list of all": (RESOURCES, changed(class_allow_list=["*"]), "class_allow_list"),
    "a list of packages": (RESOURCES, changed(class_allow_list=["nvflare.", "shared_components."]), "class_allow_list"),
    "an empty list": (RESOURCES, changed(class_allow_list=[]), "class_allow_list"),
    "a list that only warns": (RESOURCES, changed(class_list_enforcement_mode="warn"), "class_list_enforcement_mode"),
    "no components": (RESOURCES, edited(lambda values: values.pop("components")), "components"),
    "components of another kind": (RESOURCES, changed(components={}), "FLARE cannot read it"),
    "components that are null": (RESOURCES, changed(components=None), "FLARE cannot read it"),
    "no guard": (RESOURCES, guard(None), "components"),
    "a guard that is disabled": (RESOURCES, guard({"disabled": True}), "components"),
    "a guard of another class": (RESOURCES, guard({"path": "nvflare.widgets.widget.Widget"}), "components"),
    "FLARE's default rights": (RIGHTS, gone, "no such file"),
    "empty rights": (RIGHTS, holding(""), "cannot be read"),
    "no rights": (RIGHTS, holding("{}"), "FLARE cannot read it"),
    "code of anybody": (
        RIGHTS, edited(lambda v: v["permissions"]["member"].update(dict.fromkeys(CODE, "any"))), "permissions"
    ),
}  # fmt: skip
OPEN_AT_A_SITE = {
    "logs are streamed": (RESOURCES, changed(allow_log_streaming=True), "allow_log_streaming"),
    "no filter": (PRIVACY, gone, "no such file"),
    "a scope without our filter": (PRIVACY, edited(lambda v: v["scopes"].append({"name": "other"})), "scopes"),
    "a filter that is disabled": (
        PRIVACY, edited(lambda v: v["scopes"][0]["task_result_filters"][0].update(disabled=True)), "scopes"
    ),
    "no scope": (PRIVACY, holding("{}"), "scope"),
}  # fmt: skip
WAYS = [(name, party, *how) for name, how in OPEN.items() for party in ("localhost", "hospital-a")]
WAYS += [(name, "hospital-a", *how) for name, how in OPEN_AT_A_SITE.items()]


@pytest.mark.parametrize(("name", "party", "file", "change", "words"), WAYS)
def test_a_kit_that_lost_what_restricts_it_is_refused_until_it_is_secured(
    kits, capsys, monkeypatch, name, party, file, change, words
):
    kit = find_kit(kits / party)
    change(kit.local / file)
    command = ["secure-kit", "--check", str(kit.folder)]
    before = {path: path.read_bytes() for path in kit.folder.rglob("*") if path.is_file()}
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(kit.local / file) in error and words in error, error
    assert f"run surgfl secure-kit {kit.folder}" in error
    assert {path: path.read_bytes() for path in kit.folder.rglob("*") if path.is_file()} == before
    assert f"run surgfl secure-kit {kit.folder}" in ended(monkeypatch, kit)
    try:
        secure(kit)
    except KitError as error:
        assert "correct it, or move it away" in str(error)
        (kit.local / file).unlink()
        secure(kit)
    assert main(command) == 0 and ended(monkeypatch, kit) == ""


def ended(monkeypatch, kit):
    """Return the sentence with which a process ends as it builds its first component; empty if it goes on."""
    words = []
    monkeypatch.setattr(boundary, "end_process", lambda why, remedy: words.append(f"{why}: {remedy}"))
    monkeypatch.setattr(
        sys, "argv", ["client_train.py", "-m", str(kit.folder), "-s", "fed_client.json", "--set", "a=1"]
    )
    RequireBoundary()
    return "".join(words)


@pytest.mark.parametrize("party", ["localhost", "hospital-a"])
def test_flare_builds_the_check_before_anything_else_of_a_kit(kits, party):
    """It reads the file in `startup` first, and lets no other file replace its components."""
    kit = find_kit(kits / party)
    (first,) = json.loads((kit.folder / "startup" / PARTS[kit.part]).read_text())["components"]
    assert first == {"id": "boundary", "path": BOUNDARY, "args": {}}
    script = (kit.folder / "startup" / "sub_start.sh").read_text()
    assert script.count(CHECK) == 1 and script.index(CHECK) < script.index("exec python3 -u -m nvflare")


@pytest.mark.parametrize("party", ["localhost", "hospital-a"])
def test_what_restricts_nothing_is_the_partys_own(kits, party):
    kit = find_kit(kits / party)
    edit(kit.local / RESOURCES, lambda values: values["components"].append({"id": "own", "path": "a.B", "args": {}}))
    edit(kit.local / RIGHTS, lambda values: values["permissions"]["lead"].update(submit_job="none"))
    if kit.part == "site":
        noise = {"path": "a.Noise", "args": {}}
        edit(kit.local / PRIVACY, lambda values: values["scopes"][0]["task_result_filters"].insert(0, noise))
        (kit.local / "site.yaml").unlink()
    assert main(["secure-kit", "--check", str(kit.folder)]) == 0
    secure(kit, allow_custom_code=True)
    assert main(["secure-kit", "--check", str(kit.folder)]) == 0


def test_a_kit_that_flare_has_signed_gets_no_other_file_in_startup_but_the_script(kits):
    """FLARE ends where a signed file has changed, and does not look at scripts."""
    kit = find_kit(kits / "hospital-a")
    startup = kit.folder / "startup"
    edit(startup / PARTS["site"], lambda values: values.pop("components"))
    before = (startup / PARTS["site"]).read_bytes()
    (startup / "signature.json").write_text("{}")
    secure(kit)
    assert (startup / PARTS["site"]).read_bytes() == before and CHECK in (startup / "sub_start.sh").read_text()
