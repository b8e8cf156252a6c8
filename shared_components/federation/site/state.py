"""A site's state after a round: LOCAL pieces, optimizers, the method's memory, the best model."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shared_components.core import evaluation
from shared_components.core.best_checkpoint import is_best
from shared_components.core.fastest_step import FastestStep
from shared_components.core.method import State
from shared_components.core.partition import Role, below, cut, paste, prefixed
from shared_components.core.task import Scores
from shared_components.federation.messages import SiteRefusal
from shared_components.federation.runs.run_check import BEST, check_best
from shared_components.federation.runs.store import DamagedState, RoundFiles
from shared_components.federation.setup.local_round import OPTIMIZER, memory_of
from shared_components.federation.setup.site_setup import SiteSetup

OWN = "local/"  # prefix of LOCAL pieces in the state's tensors


@dataclass(frozen=True)
class SiteState:
    """The state after the site's last round, without LOCAL pieces."""

    restored: bool = False  # False before the first round
    best: dict[str, Any] = field(default_factory=dict)  # metric, value and round of the best model
    fastest: FastestStep = field(default_factory=FastestStep)
    optimizers: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)


def save(
    setup: SiteSetup, files: RoundFiles, round: int, work: State, best: dict[str, Any], fastest: FastestStep
) -> None:
    """Save the state after a round: LOCAL pieces, the tensors of the local work, the best model's score, the choice."""
    own = prefixed(OWN, cut(setup.network.state_dict(), setup.partition, Role.LOCAL))
    files.save(round, own | work, {"best": best, "fastest_step": fastest.to_json()})


def restore(setup: SiteSetup, files: RoundFiles, round: int, answered: int | None, *, name: str) -> SiteState:
    """Paste the LOCAL pieces of the site's last round before this round; return the rest of that state.

    SiteRefusal: an update of this site has counted (``answered``: in which round), and its state of that round is gone
    or damaged. Training from the initial weights instead would silently lose its LOCAL pieces.
    """
    loaded = files.load(before=round, check=partial(check_best, files.folder))
    if answered is not None and (loaded is None or loaded[0] < answered):
        file = files.path(answered).name
        remedy = f"put {file} back, resume an earlier round (--resume RUN@ROUNDS), or start a new run"
        raise SiteRefusal(f"site {name}: its state of round {answered + 1} is {_why_lost(files, answered)}; {remedy}")
    if loaded is None:
        return SiteState()
    _, tensors, values = loaded
    paste(below(OWN, tensors), setup.partition, setup.network.state_dict())
    optimizers = {key: value for key, value in tensors.items() if key.startswith(OPTIMIZER)}
    fastest = FastestStep.from_json(values.get("fastest_step", {}))  # earlier versions saved none
    return SiteState(True, values["best"], fastest, optimizers, memory_of(tensors))


def _why_lost(files: RoundFiles, round: int) -> str:
    """Return why a state cannot be used, and the rounds of the other states."""
    if files.path(round).exists():
        try:
            check_best(files.folder, files.read(round)[1])
        except DamagedState as error:
            return f"damaged, {error}"
    others = ", ".join(str(other + 1) for other in files.rounds()) or "none"
    return f"gone from {files.folder}, which has states after rounds {others}"


def save_best(
    setup: SiteSetup, files: RoundFiles, round: int, scores: Scores, best: dict[str, Any], *, name: str
) -> dict[str, Any]:
    """Save the validated weights if they are the best so far; return metric, value and round of the best."""
    value = evaluation.first_value(setup.task, scores)
    if not is_best(setup.task.metrics[0], value, best.get("value")):
        return best
    path = files.folder / BEST
    setup.save_model(path, name=name, round=round, scores=scores)
    return {"metric": setup.task.metrics[0].name, "value": value, "round": round}
