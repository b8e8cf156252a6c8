"""Hooks of a method besides partition, objective and aggregator, in a whole federation."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core import training
from shared_components.core.fastest_step import Choice, FastestStep
from shared_components.core.method import Aggregation, Models, Term
from shared_components.core.partition import Role, Slice
from shared_components.core.recorded_steps import WARM_UP
from shared_components.federation.messages import FederationError
from tests.cuda_graphs import cuda_graphs
from tests.federation.conftest import TINY, Federation, make_job, rewritten

pytestmark = pytest.mark.usefixtures("toy_bundle")


class Counting:
    """An aggregator that keeps the models and broadcasts the number of rounds."""

    def init(self, partition, models, profiles):
        return {"rounds": torch.tensor(0.0)}

    def apply(self, state, partition, models, updates):
        state = {"rounds": state["rounds"] + 1}
        return Aggregation(state, Models(models.shared, models.mixed, {"count": dict(state)}))


def test_memory_and_broadcast_reach_the_next_round_and_a_resume_and_steps_are_counted(play, federate):
    seen = []

    def objective(network, batch, context):
        count = float(context.broadcast["count"]["rounds"]) if context.broadcast else None
        memory = float(context.memory.get("steps", 0))
        context.memory["steps"] = torch.tensor(memory + 1)
        seen.append((context.round, context.iteration, context.iterations, context.sites, count, memory))
        return [Term("zero", network.head.bias.sum() * 0)]

    play(local_objective=objective, server_aggregator=Counting())
    federation = federate(make_job("fedavg"), names=["a"]).run()
    assert seen == [(0, 0, 2, 1, None, 0), (0, 1, 2, 1, None, 1), (1, 0, 2, 1, 1.0, 2), (1, 1, 2, 1, 1.0, 3)]
    federation.finish()
    down = [r["bytes"]["down"].get("count") for r in federation.server.records if r["kind"] == "site"]
    assert down == [None, 4, 4]
    again = federate(make_job("fedavg", rounds=3), names=["a"], resume=True)
    assert again.resumed and again.server.state.models.broadcast["count"]["rounds"] == 2


@pytest.mark.parametrize(("images", "frames"), [(0, 0), (1, 1), (3, 4), (None, 4), (1000, 4)])
def test_a_measure_sees_as_many_frames_as_the_method_says_in_whole_batches(play, federate, images, frames):
    seen = []

    def measure(network, batches, context, partition):
        seen.append(sum(len(batch["image"]) for batch in batches))
        return {}

    play(local_measure=measure, local_measure_images=images)
    federation = federate(make_job("fedavg", rounds=1), names=["a"])
    assert federation.run().server.state.round == 1 and seen == [frames]


def test_another_local_update_may_train_a_second_network_with_an_optimizer_of_its_own(play, federate):
    steps = []

    def update(work):
        plain = work.train(iterations=1)
        work.train(iterations=2, key="second")
        assert sum(len(batch["image"]) for batch in work.frames()) == len(work.dataset)
        assert [sum(1 for _ in work.frames(count)) for count in (0, 1, None)] == [0, 1, 2]
        tensors = work.tensors()
        steps.append([float(tensors[f"optimizer:{key}/0/step"]) for key in ("", "second")])
        return plain

    play(local_update=update)
    federate(make_job("fedavg"), names=["a"]).run()
    assert steps == [[1, 2], [2, 4]]


def test_what_is_deployed_is_validated_and_saved_and_training_goes_on_from_the_other(play, federate, tmp_path):
    def update(work):
        work.context.memory["bias"] = torch.full((4,), 7.0)
        return {}

    def deploy(state, memory):
        return {**state, **({"head.bias": memory["bias"]} if memory else {})}

    play(local_update=update, local_deploy=deploy)
    federation = federate(make_job("fedavg"), names=["a"]).run().finish()
    saved = load_file(federation.server.folder / "a" / "model.safetensors")
    assert saved["head.bias"].tolist() == [7.0] * 4
    assert federation.server.state.models.shared["head.bias"].abs().max() < 1


def test_the_last_word_of_the_server_is_what_sites_keep(play, federate):
    def finish(state, models):
        return Models({name: value * 0 for name, value in models.shared.items()}, models.mixed)

    play(server_finish=finish)
    federation = federate(make_job("fedavg"), names=["a"]).run()
    assert federation.asked.task == "finish"
    assert federation.asked.messages["a"].pieces["head.bias"].abs().sum() == 0
    assert federation.server.state.models.shared["head.weight"].abs().sum() > 0


def test_too_few_sites_are_refused_before_anybody_is_asked(play, federate):
    play(requires_min_sites=4)
    with pytest.raises(FederationError, match=r"fedavg needs at least 4 sites .* there are 3"):
        federate(make_job("fedavg")).enrol()


@pytest.fixture
def two_tasks(scenes, tmp_path):
    """Return two sites with the same layout and different class maps."""
    maps = ("parts", "shaft_manipulator")
    return [rewritten(scenes[0], tmp_path / f"task-{n}", classes=classes) for n, classes in enumerate(maps)]


def test_sites_with_different_tasks_keep_heads_of_their_own_shape(play, two_tasks, tmp_path):
    def rule(name, tensor, module):
        return (Slice(Role.MIXED if name.startswith("head.") else Role.GLOBAL),)

    class KeepMixed(Counting):
        def apply(self, state, partition, models, updates):
            return Aggregation(state, Models(models.shared, {u.site: u.pieces for u in updates}))

    play(partition=lambda network: rule, server_aggregator=KeepMixed(), requires_multi_task=True)
    job = make_job("fedavg", training={**TINY, "iterations": 1})
    federation = Federation(job, tmp_path / "runs", two_tasks, ("a", "b"))
    federation.enrol()
    mixed = federation.server.state.models.mixed
    assert [len(mixed[site]["head.bias"]) for site in ("a", "b")] == [4, 3]
    federation.send(federation.replies())


def test_shared_pieces_of_different_tasks_must_fit(play, two_tasks, tmp_path):
    play(requires_multi_task=True)
    federation = Federation(make_job("fedavg"), tmp_path / "runs", two_tasks, ("a", "b"))
    shown = r"\(head.bias \(4,\) and head.bias \(3,\)\)"
    with pytest.raises(FederationError, match=f"a and b differ in their shared pieces {shown}"):
        federation.enrol()


@pytest.mark.parametrize("method, arguments", [("fedsam", {"swa": {"start": 2}}), ("feddp", {"fine_tune_from": 2})])
def test_a_job_that_ends_before_what_its_arguments_name_is_refused(federate, method, arguments):
    with pytest.raises(FederationError, match=rf"{method} needs at least 3 rounds .* the job has 2; change 'rounds'"):
        federate(make_job(method, rounds=2, arguments=arguments))
    federate(make_job(method, rounds=3, arguments=arguments))


@pytest.mark.parametrize("method", ["fedprox", "ditto"])
def test_sites_record_steps_and_train_as_in_eager_steps(method, federate, tmp_path, request):
    """Two models of Ditto have graphs of their own; the rate is exact in float32."""
    settings = {**TINY, "iterations": 5, "optimizer": "sgd", "learning_rate": 2**-9, "accumulate": 1}
    job, ends = make_job(method, bundle="toy", training=settings), []
    for name in ("eager", "recorded"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "recorded":
                graphs = request.getfixturevalue(cuda_graphs.__name__)
                patch.setattr(training, "why_eager", lambda *known: "")
            federation = federate(job, names=["a", "b"], folder=tmp_path / name).run()
        records = [r["loss"] for r in federation.server.records if r["kind"] == "site"]
        ends.append((records, federation.server.state.models.shared))
    for losses, others in zip(ends[0][0], ends[1][0], strict=True):
        assert others == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(ends[1][1], ends[0][1], rtol=1e-3, atol=1e-5)
    trainings = 2 if method == "ditto" else 1
    assert graphs.replays == trainings * 2 * 2 * (5 - WARM_UP)  # two sites, two rounds


def test_a_sites_choice_of_the_fastest_step_is_kept_for_its_next_round_and_a_resume(federate, monkeypatch):
    seen = []

    def for_run(self, steps):
        seen.append((self.choice, steps))
        self.choice = Choice(benchmark=True)
        return self

    monkeypatch.setattr(FastestStep, "for_run", for_run)
    federate(make_job("fedavg"), names=["a"]).run()
    federate(make_job("fedavg", rounds=3), names=["a"], resume=True).run()
    assert seen == [(None, 4), (Choice(benchmark=True), 4), (Choice(benchmark=True), 6)]  # steps of all rounds
