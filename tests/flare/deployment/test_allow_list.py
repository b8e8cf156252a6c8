"""The list of classes that a site installs is what our jobs name, and no class more."""

import json
from pathlib import Path

import pytest
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

import shared_components.flare.deployment as deployment

ROOT = Path(__file__).resolve().parents[3]
LIST = Path(deployment.__file__).with_name("allow_list.json")
SIDES = ("server", "client")


def classes_of(value):
    """Yield every class that a config names, however deep."""
    if isinstance(value, dict):
        yield from (value[key] for key in ("path", "class_path") if key in value)
        for item in value.values():
            yield from classes_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from classes_of(item)


@pytest.mark.parametrize("side", SIDES)
def test_the_list_is_the_union_of_what_all_jobs_name(side):
    configs = sorted(ROOT.glob(f"nvflare_jobs/*/app/config/config_fed_{side}.json"))
    named = {name for path in configs for name in classes_of(json.loads(path.read_text()))}
    listed = json.loads(LIST.read_text())[side]["class_allow_list"]
    assert len(configs) == len(list(ROOT.glob("nvflare_jobs/*/meta.json"))) > 20
    assert sorted(named) == listed


@pytest.mark.parametrize("side", SIDES)
def test_flare_takes_the_list_and_allows_nothing_beside_it(side, tmp_path):
    """By the rule of FLARE itself: a path of the list, and no package, neighbour or class of FLARE's own."""
    listed = json.loads(LIST.read_text())
    resources = tmp_path / "resources.json"
    mode = "class_list_enforcement_mode"
    resources.write_text(json.dumps({mode: listed[mode], **listed[side]}))

    class Place:
        def get_resources_file_path(self):
            return str(resources)

    for name in listed[side]["class_allow_list"]:
        ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=Place())
    for name in ("shared_components.flare.filters.Other", "nvflare.app_common.np.np_trainer.NPTrainer", "os.system"):
        with pytest.raises(Exception, match="is not in allow_list"):
            ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=Place())
