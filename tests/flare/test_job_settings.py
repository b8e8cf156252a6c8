"""Settings reach the controller as they stand in the job's file, or the simulator's job ends with a sentence."""

import json

import pytest

from shared_components.federation.messages import FederationError
from shared_components.flare.job_settings import read_job, refuse_substituted
from tests.flare.simulator import JOBS, SERVER


@pytest.fixture
def settings():
    return json.loads((JOBS / "pfedsis" / SERVER).read_text())["workflows"][0]["args"]


@pytest.mark.parametrize(
    ("key", "written", "received"),
    [
        ("start", "x{SITE_NAME:>9}", "x   server"), ("arguments", {"a": [{"b": "{$HOME}"}]}, {"a": [{"b": "/home"}]}),
        ("bundle", "{name}", "pfedsis"), ("rounds", "{n}", 3), ("bundle", "{}", None),
    ],
)  # fmt: skip
def test_settings_that_the_simulator_has_replaced_are_named(key, written, received, settings, tmp_path):
    path = tmp_path / "config_fed_server.json"
    path.write_text(json.dumps({"workflows": [{"args": {**settings, key: written}}]}))
    with pytest.raises(FederationError, match=f"json: {key} contains braces, which the simulator replaces"):
        refuse_substituted(path, {**settings, key: received})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workflows": []}', '{"workflows": 3}'])
def test_a_file_that_cannot_be_read_is_named(text, settings, tmp_path):
    path = tmp_path / "config_fed_server.json"
    if text:
        path.write_text(text)
    with pytest.raises(FederationError, match=r"config_fed_server\.json: cannot be read as JSON"):
        refuse_substituted(path, settings)


@pytest.mark.parametrize("text", ["{$HOME}", "x{SITE_NAME:>300000000}", "a}", "{"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: {"name": text}, lambda text: {"arguments": {"share": text}}, lambda text: {"bundle": text},
        lambda text: {"arguments": {"share": [[text]]}}, lambda text: {"network": {"_": text}},
        lambda text: {"training": {"start": text}}, lambda text: {"wire": text}, lambda text: {"method": text},
    ],
)  # fmt: skip
def test_a_deployment_refuses_braces_in_any_setting(text, change, settings):
    ((key, value),) = change(text).items()
    merged = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    with pytest.raises(FederationError, match=f"config_fed_server.json: .*{key}"):
        read_job({**settings, key: merged})
