"""Refuse overrides that are misspelt, have the wrong type or change nothing; MONAI accepts them silently."""

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
"""Options of MONAI's runner, by workflow."""
FREE_SECTIONS = ("training", "tasks")
"""Sections that may have keys without a default in the config; their readers refuse unknown keys."""
_TOOLS = (
    "a run prepares frames and writes masks itself; set its input size with --height and --width, and edit the file "
    "for MONAI Label and MONAI Deploy"
)
UNUSED = {
    "preprocessing": _TOOLS, "postprocessing": _TOOLS,
    "weights_of": "the bundle's file names the weights of --start rendered; choose other weights with --start",
}  # fmt: skip
"""Sections that our runs do not read, and the reason in the error message."""
TRACKERS = {"MLFlowHandler": ("--tracking mlflow", "mlflow"), "WandBLogger": ("wandb.yaml", "wandb")}
"""Option and required package of the handlers for experiment tracking."""


class ConfigError(ValueError):
    """Error for an unusable command line or config; the message names the key and the remedy."""


def bundle_root() -> str:
    """Return the folder of the running bundle, or `.` if no bundle is run.

    Tools that parse a config without running it, such as MONAI Label, replace this key.
    """
    workflow, _ = _running_workflow()
    if workflow is None or workflow.config_root_path is None:
        return "."
    return str(Path(workflow.config_root_path).resolve().parent)


def buildable(network: nn.Module) -> Rebuildable:
    """Return a network that can be rebuilt with another number of outputs, see `adapter.adapted`.

    Raises ConfigError if the class of another library is not allowed or cannot be adapted, or if its section contains
    an expression: a checkpoint's header describes the network in plain values.
    """
    kind, parser = type(network), _calling(ConfigParser)
    if is_ours(kind):
        return cast(Rebuildable, network)
    section = parser.get("network_def") if parser is not None else None
    if not isinstance(section, Mapping):
        raise ConfigError(f"network_def: {kind.__name__} is no section with a _target_; write it as a section")
    path = f"{kind.__module__}.{kind.__qualname__}"
    definition = {**section, "_target_": path if path.startswith("monai.") else section["_target_"]}
    try:
        refuse_code({key: value for key, value in definition.items() if key != "_target_"}, "network_def")
        return cast(Rebuildable, adapted(definition))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def refuse_unknown_keys() -> None:
    """Raise ConfigError for overrides with an unknown key, a wrong type or no effect.

    Known keys are those of the config files, arguments of components, options of MONAI's runner and of `--tracking`.
    """
    workflow, options = _running_workflow()
    if workflow is None:
        return
    parser = workflow.parser
    _restore_paths(parser)
    if amp := parser.get("train#trainer#amp", False):
        raise ConfigError(
            f"--train#trainer#amp {amp} has no effect, since the training step is ours; use --training#precision bf16"
        )
    for handler, (option, package) in TRACKERS.items():
        if handler in repr(parser.get()) and find_spec(package) is None:
            raise ConfigError(
                f"{option} needs the package {package}, which is not installed: pip install {package}, "
                f"or leave {option} out; TensorBoard logs are written without it"
            )
    known = ConfigParser.load_config_files(_files_in_use(workflow, options))
    for name, why in UNUSED.items():
        if name in known and parser.get().get(name) != known[name]:
            raise ConfigError(f"--{name} has no effect, since {why}")
    added = _tracking_keys(options)
    present = {k: v for k, v in parser.get().items() if k != parser.meta_key and k not in added}
    for path, section in _unknown(present, known, parser):
        raise ConfigError(_unknown_option(path, section))
    if sentence := wrong_option(present):
        raise ConfigError(sentence)


def _restore_paths(parser: ConfigParser) -> None:
    """Replace paths by the command line's text: MONAI's runner reads 2024_01 as a number, and a,b as a list."""
    typed = {}
    for word, after in zip(sys.argv, [*sys.argv[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("-"):
            typed[option.lstrip("-").replace("-", "_")] = value if equals else after
    for key in PATHS:
        if typed.get(key) is not None and key in parser.get() and not isinstance(parser.get(key), str | None):
            parser.get()[key] = typed[key]
            parser.ref_resolver.items[key].update_config(typed[key])


def is_overridden(*path: str) -> bool:
    """Return whether the command line sets a key, such as ``("training", "height")``, to another value than the files.

    The result is False if no workflow is running.
    """
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
    """Yield the path of each key that the config files lack, with the known keys of its section."""
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
    """Return whether a key is an argument of a component that its config file does not set."""
    if "_target_" not in section:
        return False
    name = ConfigComponent(config=section, locator=parser.locator).resolve_module_name()
    target = pydoc.locate(name) if isinstance(name, str) else name
    if key in ConfigComponent.non_arg_keys or not callable(target):
        return True
    parameters = inspect.signature(target).parameters
    return key in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _unknown_option(path: tuple[str, ...], section: Collection[str]) -> str:
    """Return the error message for an unknown key, with the closest known key."""
    prefix = "#".join(path[:-1]) + "#" if path[1:] else ""
    keys, runner_options = sorted(key for key in section if not key.startswith("_")), []
    if not prefix:  # options of `python -m monai.bundle run` besides overrides
        functions: tuple[Any, ...] = run_bundle, create_workflow, ConfigWorkflow
        parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
        runner_options = sorted({p.name for p in parameters if p.kind is not p.VAR_KEYWORD})
    close = difflib.get_close_matches(path[-1], [*keys, *runner_options], n=1)
    hint = f"did you mean --{prefix}{close[0]}? " if close else ""
    known = ", ".join(f"{prefix}{key}" for key in keys)
    more = f"; of MONAI's runner: {', '.join(runner_options)}" if runner_options else ""
    return f"unknown option --{prefix}{path[-1]}; {hint}known options: {known}{more}"


def _tracking_keys(options: Mapping[str, Any]) -> set[str]:
    """Return the top-level keys that experiment tracking adds to a config, and takes as overrides."""
    tracking: Any = options.get("tracking") if options else "mlflow"  # unknown if a program created the workflow
    if tracking is None:
        return set()
    if isinstance(tracking, str) and tracking in DEFAULT_EXP_MGMT_SETTINGS:
        tracking = DEFAULT_EXP_MGMT_SETTINGS[tracking]
    settings = ConfigParser.load_config_files(tracking)
    return {"save_execute_config", *settings["configs"]} - set(settings["handlers_id"])


def _files_in_use(workflow: ConfigWorkflow, options: Mapping[str, Any]) -> list[str]:
    """Return the config files, the base first.

    A workflow created by a program does not store them: then all files whose top-level keys it has are in use.
    """
    if (paths := options.get("config_file")) is not None:
        return [paths] if isinstance(paths, str) else list(paths)
    present = set(workflow.parser.get())
    files = sorted(workflow.config_root_path.glob("*.yaml"), key=lambda path: path.stem != "train")
    texts = {path: read_own_yaml(path.read_text("utf-8")) for path in files}
    return [str(path) for path in files if {key.split("#")[0].split("::")[0] for key in texts[path]} <= present]


def _running_workflow() -> tuple[ConfigWorkflow | None, Mapping[str, Any]]:
    """Return the workflow that evaluates the calling expression, and the options of MONAI's runner that created it.

    Both come from the callers' frames, since MONAI 1.6 has no hook for them: an expression gets only resolved values
    of other keys, and the runner builds a subclass of `ConfigWorkflow` only if the user adds `--workflow_name`.
    """
    workflow = _calling(ConfigWorkflow)
    if workflow is None:
        return None, {}
    for frame, _ in traceback.walk_stack(None):
        if frame.f_code is create_workflow.__code__:
            _OPTIONS[workflow] = {**frame.f_locals["_args"], "config_file": frame.f_locals["config_file"]}
            break
    return workflow, _OPTIONS.get(workflow, {})


def _calling(kind: type[T]) -> T | None:
    """Return the innermost caller's `self` of this class."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_stack(None))
    return next((caller for caller in callers if isinstance(caller, kind)), None)


def _text(words: str) -> Any:
    return Annotated[str, Meta(pattern=r"\S", description=f"it is {words}")]


_COUNT = Annotated[int, Meta(ge=1, le=10**9, description="it is a whole number from 1 on")]
_PATH = _text("a path")
PATHS = ("site_config", "checkpoint", "input", "first_mask", "output_dir", "start")  # options that may be paths
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
    **{
        key: Annotated[dict[Any, Any], Meta(description=f"it is a section: set its keys with --{key}#<name> <value>")]
        for key in ("training", "tasks", "network_def", "method")
    },
}
"""Types of the bundles' options; `device` depends on the machine."""


def wrong_option(config: Mapping[str, Any]) -> str:
    """Return the error message for the first option with a wrong type; empty if all types are valid.

    Expressions and references, which MONAI evaluates, are not checked.
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
