"""`SurgFLRecipe` submits a job to a real server that permits only classes of SurgFL."""

import json
from pathlib import Path

import pytest
from nvflare.recipe import ProdEnv

from evidence.production.prepared import CHIEF
from shared_components.flare.recipe import SurgFLRecipe

pytestmark = pytest.mark.slow


def test_a_recipe_runs_in_production_and_its_result_is_fetched(deploy_quick):
    deployment = deploy_quick("hospital-a", "hospital-b")
    deployment.start()
    env = ProdEnv(str(deployment.kits / CHIEF), username=CHIEF, login_timeout=60)
    run = SurgFLRecipe(deployment.job("pfedsis", rounds=5), rounds=2).execute(env)
    result = run.get_result(timeout=240)
    assert run.get_status() == "FINISHED:COMPLETED", deployment.server.log
    (described,) = Path(result).glob("**/surgfl_result/run.json")
    assert json.loads(described.read_text())["rounds"] == 2
