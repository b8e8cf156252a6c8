"""Refuse overrides that are misspelt, have the wrong type or change nothing; MONAI accepts them silently."""

from __future__ import annotations

import difflib
import inspect
import pydoc
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from monai.bundle import ConfigComponent, ConfigExpression, ConfigParser, ConfigWorkflow
from monai.bundle.scripts import create_workflow
from monai.bundle.scripts import run as run_bundle
from monai.bundle.utils import DEFAULT_EXP_MGMT_SETTINGS
from msgspec import Meta
from torch import nn

from shared_components.common.machine import usable_device
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.common.reject_code import refuse_code
from shared_components.common.schema import check_values, short_repr
from shared_components.core.trained_model import Rebuildable
from shared_components.networks.adapter import adapted
from shared_components.networks.network_class import is_ours

T = TypeVar("T")
_OPTIONS: WeakKeyDictionary[ConfigWorkflow, Mapping[str, Any]] = WeakKeyDictionary()
"""Options of MONAI's runner, by the workflow that it made."""
FREE_SECTIONS = ("training", "tasks")
"""Plain sections that need not state every key; their readers refuse an unknown one by name."""
_OTHERS = (
    "a run prepares frames and writes masks itself; the size of its input is --height and --width, and what MONAI "
    "Label and Deploy do is changed in the file"
)
UNUSED = {
    "preprocessing": _OTHERS,  # which MONAI Label, MONAI Deploy and others read, and our own runs do not
    "postprocessing": _OTHERS,
    "weights_of": "the bundle's file says whose weights --start rendered means; name other ones by --start",
}
"""Sections that an option would change in vain, and why."""
TRACKERS = {"MLFlowHandler": ("--tracking mlflow", "mlflow"), "WandBLogger": ("wandb.yaml", "wandb")}
"""Handlers of experiment tracking: how one asks for them, and the package that they need."""


class ConfigError(ValueError):
    """A command line or config that cannot be used; the message names the key and what to do."""


def bundle_root() -> str:
    """Return the folder of the bundle whose config is run, from whichever directory; else the working directory.

    Tools that parse a config without running it, such as MONAI Label, replace the key by the folder that they know.
    """
    workflow, _ = _running_workflow()
    if workflow is None or workflow.config_root_path is None:
        return "."
    return str(Path(workflow.config_root_path).resolve().parent)


def buildable(network: nn.Module) -> Rebuildable:
    """Return the network of `network_def` as one that can be built anew with another number of outputs.

    Ours are; one of another library is built from its `network_def`, see `adapter.adapted`.

    Raises:
        ConfigError: The section holds an expression, since a model's header names its network in plain values; or the
            class is not allowed here, or cannot be adapted.
    """
    if is_ours(type(network)):
        return cast(Rebuildable, network)
    parser = _calling(ConfigParser)
    section = parser.get("network_def") if parser is not None else None
    kind = type(network)
    if not isinstance(section, Mapping):
        raise ConfigError(f"network_def: {kind.__name__} is no section with a _target_; write it as one")
    path = f"{kind.__module__}.{kind.__qualname__}"
    definition = {**section, "_target_": path if path.startswith("monai.") else section["_target_"]}
    try:
        refuse_code({key: value for key, value in definition.items() if key != "_target_"}, "network_def")
        return cast(Rebuildable, adapted(definition))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def refuse_unknown_keys() -> None:
    """Refuse an override, nested or not, that no config file in use has and no component takes, or of a wrong kind.

    Options of MONAI's runner and the keys of its `--tracking` are known; `--train#trainer#amp` is refused, since our
    training step replaces the trainer's.

    Raises:
        ConfigError: One sentence with the closest known key.
    """
    workflow, options = _running_workflow()
    if workflow is None:
        return
    parser = workflow.parser
    _restore_paths(parser)
    _refuse_amp(parser)
    _refuse_missing_tracker(parser.get())
    known = ConfigParser.load_config_files(_files_in_use(workflow, options))
    for name, why in UNUSED.items():
        if name in known and parser.get().get(name) != known[name]:
            raise ConfigError(f"--{name} would change nothing, since {why}")
    added = _tracking_keys(options)
    present = {k: v for k, v in parser.get().items() if k != parser.meta_key and k not in added}
    for path, section in _unknown(present, known, parser):
        raise ConfigError(_sentence(path, section))
    if sentence := wrong_option(present):
        raise ConfigError(sentence)


def _restore_paths(parser: ConfigParser) -> None:
    """Give paths the text that was typed: MONAI's runner reads 2024_01 as the number 202401, and a,b as a list."""
    for key in PATHS:
        typed = _typed(key)
        if typed is not None and key in parser.get() and not isinstance(parser.get(key), str | None):
            parser.get()[key] = typed
            parser.ref_resolver.items[key].update_config(typed)


def _typed(key: str) -> str | None:
    """Return the text of an option on the command line, the last where it is given twice; None without it."""
    found = None
    for word, after in zip(sys.argv, [*sys.argv[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("-") and option.lstrip("-").replace("-", "_") == key:
            found = value if equals else after
    return found


def is_overridden(*path: str) -> bool:
    """Return whether the running workflow has a key, ``("training", "height")``, of another value than its files."""
    workflow, options = _running_workflow()
    if workflow is None:
        return False
    known: Any = ConfigParser.load_config_files(_files_in_use(workflow, options))
    present: Any = workflow.parser.get()
    for key in path:
        known, present = (part.get(key) if isinstance(part, Mapping) else None for part in (known, present))
    return present != known


def _unknown(
    present: Any, known: Any, parser: ConfigParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Collection[str]]]:
    """Yield (path, known keys beside it) of keys that a config has and its files do not; a whole new value is fine."""
    if isinstance(present, dict) and isinstance(known, dict) and path[:1] not in {(s,) for s in FREE_SECTIONS}:
        for key in sorted(present):
            if key in known:
                yield from _unknown(present[key], known[key], parser, (*path, key))
            elif not _is_argument(key, present, parser):
                yield (*path, key), known
    elif isinstance(present, list) and isinstance(known, list):
        for number, pair in enumerate(zip(present, known, strict=False)):
            yield from _unknown(*pair, parser, (*path, str(number)))


def _is_argument(key: str, section: Mapping[str, Any], parser: ConfigParser) -> bool:
    """Return whether a component takes an argument that its config leaves at the default."""
    if "_target_" not in section:
        return False
    name = ConfigComponent(config=section, locator=parser.locator).resolve_module_name()
    target = pydoc.locate(name) if isinstance(name, str) else name
    if key in ConfigComponent.non_arg_keys or not callable(target):
        return True
    parameters = inspect.signature(target).parameters
    return key in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _sentence(path: tuple[str, ...], section: Collection[str]) -> str:
    where = "#".join(path[:-1]) + "#" if path[1:] else ""
    keys = sorted(key for key in section if not key.startswith("_"))
    runners = [] if where else sorted(_runner_options())
    close = difflib.get_close_matches(path[-1], [*keys, *runners], n=1)
    hint = f"did you mean --{where}{close[0]}? " if close else ""
    listed = ", ".join(f"{where}{key}" for key in keys)
    more = f"; of MONAI's runner: {', '.join(runners)}" if runners else ""
    return f"unknown option --{where}{path[-1]}; {hint}known options: {listed}{more}"


def _refuse_amp(parser: ConfigParser) -> None:
    value = parser.get("train#trainer#amp", False)
    if value is not None and value is not False:
        raise ConfigError(
            f"--train#trainer#amp {value} would change nothing, since the training step is ours; "
            "mixed precision is --training#precision bf16, or auto"
        )


def _refuse_missing_tracker(config: Any) -> None:
    for handler, (option, package) in TRACKERS.items():
        if handler in repr(config) and find_spec(package) is None:
            raise ConfigError(
                f"{option} needs the package {package}, which is not installed: pip install {package}, "
                f"or leave {option} out; TensorBoard logs are written without it"
            )


def _runner_options() -> set[str]:
    """Return the options of `python -m monai.bundle run` besides overrides, by its signatures."""
    takers = (run_bundle, create_workflow, ConfigWorkflow)
    parameters = [p for taker in takers for p in inspect.signature(taker).parameters.values()]
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}


def _tracking_keys(options: Mapping[str, Any]) -> set[str]:
    """Return the top-level keys that experiment tracking adds to a config, and takes as overrides."""
    tracking: Any = options.get("tracking") if options else "mlflow"  # unknown of a workflow made by hand
    if tracking is None:
        return set()
    if isinstance(tracking, str) and tracking in DEFAULT_EXP_MGMT_SETTINGS:
        tracking = DEFAULT_EXP_MGMT_SETTINGS[tracking]
    settings = ConfigParser.load_config_files(tracking)
    return {"save_execute_config", *settings["configs"]} - set(settings["handlers_id"])


def _files_in_use(workflow: ConfigWorkflow, options: Mapping[str, Any]) -> list[str]:
    """Return the config files, the base first.

    A workflow made by hand does not remember them: then a file of its folder is in use when all of its top-level keys
    are there.
    """
    given = options.get("config_file")
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    present = set(workflow.parser.get())
    files = sorted(workflow.config_root_path.glob("*.yaml"), key=lambda path: path.stem != "train")
    texts = {path: read_own_yaml(path.read_text("utf-8")) for path in files}
    return [str(path) for path in files if {key.split("#")[0].split("::")[0] for key in texts[path]} <= present]


def _running_workflow() -> tuple[ConfigWorkflow | None, Mapping[str, Any]]:
    """Return the workflow that evaluates the calling expression, and the options of MONAI's runner that made it.

    Both come from the callers' frames, since MONAI 1.6 has no hook for them: an expression gets only resolved values
    of other keys, and the runner builds a subclass of `ConfigWorkflow` only if the user adds `--workflow_name`.
    """
    callers = (frame for frame, _ in traceback.walk_stack(None))
    runner = next((frame.f_locals for frame in callers if frame.f_code is create_workflow.__code__), None)
    workflow = _calling(ConfigWorkflow)
    if workflow is None:
        return None, {}
    if runner is not None:
        _OPTIONS[workflow] = {**runner["_args"], "config_file": runner["config_file"]}
    return workflow, _OPTIONS.get(workflow, {})


def _calling(kind: type[T]) -> T | None:
    """Return the innermost object of a class whose method is being run."""
    holders = (frame.f_locals.get("self") for frame, _ in traceback.walk_stack(None))
    return next((holder for holder in holders if isinstance(holder, kind)), None)


def _text(words: str) -> Any:
    return Annotated[str, Meta(pattern=r"\S", description=f"it is {words}")]


def _section(key: str) -> Any:
    return Annotated[dict[Any, Any], Meta(description=f"it is a section: write its settings as --{key}#<name> <value>")]


_COUNT = Annotated[int, Meta(ge=1, le=10**9, description="it is a whole number from 1 on")]
_PATH = _text("a path")

PATHS = ("site_config", "checkpoint", "input", "first_mask", "output_dir", "start")
"""Options that may be paths, whatever else their text looks like."""
KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("site_config", "checkpoint", "input"), _PATH | None),
    "first_mask": _PATH | None,
    "boxes": Annotated[str | list[Any], Meta(description='it is a text, such as "shaft=10,20,100,80"')] | None,
    "output_dir": _PATH,
    "start": _text("random, rendered or a path") | None,
    "split": _text("the name of a split: train, validation or test"),
    "empty_policy": _text("diagonal or paper"),
    "masks": _text("png or none"),
    "precision": _text("float32 or bf16"),
    **dict.fromkeys(("val_interval", "every", "height", "width"), _COUNT),
    "video_rate": Annotated[float, Meta(gt=0, le=1e9, description="it is a number of images a second, above 0")] | None,
    "pictures": Annotated[bool | None, Meta(description="it is true, false or null")],
    **{key: _section(key) for key in ("training", "tasks", "network_def", "method")},
}
"""The type of every option that a bundle may have; `device` depends on the machine."""


def wrong_option(config: Mapping[str, Any]) -> str:
    """Return one sentence on the first plain option that is of another kind than it should be; empty: all fit.

    A value that MONAI works out, an expression or a reference, is left to what reads it.
    """
    plain = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in config.items()
        if not ConfigExpression.is_expression(value) and not (isinstance(value, str) and value.startswith("@"))
    }
    try:
        check_values(KINDS, plain, key="--{}")
    except ValueError as error:
        return str(error)
    if "device" in plain and usable_device(plain["device"]) is None:
        return f"--device is {short_repr(plain['device'])}; it is a device of this machine, such as cpu or cuda:0"
    return ""
