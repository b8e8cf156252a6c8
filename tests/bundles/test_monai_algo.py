"""MONAI's federated client trains, exchanges and evaluates a bundle, with only the folder of the bundle."""

import pytest
import torch
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject

from tests.bundles.conftest import BUNDLES

pytestmark = [pytest.mark.slow, pytest.mark.full_width]


def test_monai_algo_trains_one_epoch_exchanges_weights_and_evaluates(site_config, tmp_path, monkeypatch):
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(site_config))
    monkeypatch.chdir(tmp_path)
    algo = MonaiAlgo(bundle_root=str(BUNDLES / "pvt_fpn"))
    algo.initialize()
    start = {name: value.clone() for name, value in algo.trainer.network.state_dict().items()}
    algo.train(ExchangeObject(weights=start))
    sent = algo.get_weights()
    trained = algo.trainer.network.state_dict()
    assert sent.weights.keys() == start.keys()
    assert all(torch.equal(sent.weights[name], trained[name] - start[name]) for name in start)
    assert any(bool(value.abs().sum() > 0) for value in sent.weights.values())
    assert sent.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] == 20  # one local epoch
    metrics = algo.evaluate(ExchangeObject(weights=trained)).metrics
    assert 0 <= metrics["dice"] <= 1
    assert all(torch.equal(value, trained[name]) for name, value in algo.evaluator.network.state_dict().items())
    assert [path.name for path in tmp_path.rglob("metrics.json")] == []  # evaluation overwrites no results
    algo.finalize()
