"""The pages that list what the library has: commands, jobs, tasks, data layouts and the Python API."""

import argparse
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import yaml

import shared_components.tasks
import surgfl
from evidence.reference.declared import sentences, summary, table
from shared_components.cli import GROUPS, build_parser
from shared_components.core.card import Metric
from shared_components.data.readers import find_reader, reader_names
from shared_components.experiments.comparison.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
EXTENSION_POINTS = (
    "shared_components.inference.arrays", "shared_components.core.method", "shared_components.core.partition",
    "shared_components.core.task", "shared_components.data.readers", "shared_components.federation.protocol",
    "shared_components.flare.recipe",
)  # fmt: skip


@cache
def kinds_of_task() -> dict[str, ModuleType]:
    """Return the module of each kind of task."""
    names = sorted(module.name for module in pkgutil.iter_modules(shared_components.tasks.__path__))
    return {name: importlib.import_module(f"shared_components.tasks.{name}") for name in names}


def commands() -> str:
    """Return the page of commands and options."""
    parsers = _children(build_parser())
    parts = ["# Commands\n\nThe commands of `surgfl` and their arguments, as `-h` prints them.\n"]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [_command(f"surgfl {name}", parsers[name], parsers[name].description or "", "###") for name in names]
    return "\n".join(parts)


def presets() -> str:
    """Return the page of the presets of `surgfl compare`."""
    rows = [(f"`{name}`", _plain(preset.title.removeprefix("Layout of "))) for name, preset in PRESETS.items()]
    return f"""\
# Comparison presets

Tables and figures of papers that `surgfl compare --preset NAME` repeats.
`all` compares all methods that take frames of any shape.
[Compare methods](../how-to/compare.md) explains them.

{table(("Preset", "Content"), rows)}
"""


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _command(name: str, parser: argparse.ArgumentParser, text: str, level: str) -> str:
    elsewhere = [group for group in parser._action_groups if group.description]
    hidden = {action for group in elsewhere for action in group._group_actions}
    rows = [_row(name, action) for action in parser._actions if action not in hidden and _is_shown(action)]
    parts = [f"{level} {name}\n\n{_sentence(_plain(text))}\n"]
    parts += [table(("Argument", "Meaning"), rows) + "\n"] if rows else []
    parts += [f"Options for {_plain(f'{group.title}, {group.description}')}.\n" for group in elsewhere]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action._choices_actions:
                parts.append(_command(f"{name} {one.dest}", action.choices[one.dest], one.help or "", f"{level}#"))
    return "\n".join(parts)


def _is_shown(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def _row(command: str, action: argparse.Action) -> tuple[str, str]:
    formatter = argparse.HelpFormatter(command)
    word = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    names = ", ".join(action.option_strings)
    word = "" if word == action.dest.upper() else word  # repeats the option
    shown = f"{names} {word}".strip() if names else str(action.metavar or action.dest)
    text = formatter._expand_help(action) if action.help else ""
    if action.dest == "preset":
        text = f"table or figure of a paper, see [presets](presets.md); default: {action.default}"
        return f"`{shown}`", text
    return f"`{shown}`", _plain(text) + (" (required)" if action.required and names else "")


def _plain(text: str) -> str:
    """Write a help text as Markdown shows it: no tags, no emphasis; braces and angle brackets stay."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else re.sub(r"([<>*_\[\]])", r"\\\1", p) for p in parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def jobs() -> str:
    """Return the page of the shipped jobs."""
    described = yaml.safe_load((ROOT / "nvflare_jobs" / "jobs.yaml").read_text("utf-8"))
    by_bundle: dict[str, list[str]] = {}
    for name, own in described["jobs"].items():
        card = f"[{name}](../../nvflare_jobs/{name}/README.md)"
        method = own.get("method", name)
        by_bundle.setdefault(own.get("bundle", described["all"]["bundle"]), []).append(
            card if method == name else f"{card} (`{method}`)"
        )
    rows = [(f"[{name}](../../bundles/{name}/docs/README.md)", ", ".join(cards)) for name, cards in by_bundle.items()]
    return f"""\
# Jobs

NVIDIA FLARE jobs that come with SurgFL, in `nvflare_jobs/`. A method with another name is in parentheses.
[Job settings](job-settings.md) explains what a job can change.

{table(("Bundle", "Jobs"), rows)}
"""


def tasks_and_metrics() -> str:
    """Return the page of tasks."""
    parts = [
        "# Tasks and metrics\n\nWhat a site can learn, and how it is scored. The first metric selects the best model."
        "\n↑: higher is better, ↓: lower is better."
        "\n[Job settings](job-settings.md#tasks) lists each task's settings.\n"
    ]
    for kind, module in kinds_of_task().items():
        metrics = list(module.METRICS)
        metrics += [one for name in ("IMAGE_IOU", "COST") if (one := getattr(module, name, None))]
        rows = [(f"`{one.name}`", _labelled(one), _plain(module.DEFINITIONS.get(one.name, ""))) for one in metrics]
        parts.append(f"## {kind}\n\n{summary(module)}\n")
        parts.append(table(("Metric", "Label", "Definition"), rows) + "\n")
    return "\n".join(parts)


def _labelled(metric: Metric) -> str:
    """Return a metric's label, direction and unit."""
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"{metric.label}{unit} {'↑' if metric.higher_is_better else '↓'}"


def data_layouts() -> str:
    """Return the page of the layouts of public data sets."""
    rows, parts = [], []
    for name in reader_names():
        reader, module = find_reader(name), importlib.import_module(f"shared_components.data.readers.{name}")
        targets = ", ".join(f"`{one}`" for one in reader.TARGETS) or "images only"
        targets += f" ({reader.CLASS_MAP})" if reader.CLASS_MAP else ""
        rate = f"{reader.RATE:g}" if reader.RATE else ""
        rows.append((f"[{name}](#{name})", targets, rate))
        parts.append(f"## {name}\n\n{summary(module)}\n")
        if tree := _tree(module):
            parts.append(f"```text layout\n{tree}\n```\n")
    return (
        f"# Data layouts\n\nValues of `dataset` in [site.yaml](site-yaml.md): {len(rows)} public data sets."
        "\nFor [data of your own](../how-to/your-data.md#data-of-your-own), use `frames` or `nifti`.\n\n"
        + table(("Layout", "Targets (class map)", "Frame rate (fps)"), rows)
        + "\n\n"
        + "\n".join(parts)
    )


def _tree(module: ModuleType) -> str:
    """Return the first indented block of a module's docstring: the files on disk."""
    found = re.search(r"(?:^    .*\n?)+", inspect.getdoc(module) or "", re.MULTILINE)
    return inspect.cleandoc("\n" + found[0]) if found else ""


def python_api() -> str:
    """Return the page of the Python API; the site adds the docstrings of each module."""
    parts = [
        "# Python API\n\nThe functions of `import surgfl`, and the modules that an extension uses.\n",
        "## surgfl\n",
    ]
    for name in surgfl.__all__:
        if not name.startswith("__"):
            parts.append(_function(name))
    parts.append("## Modules for extensions\n\nThe site lists their classes and functions below.\n")
    rows = []
    for name in EXTENSION_POINTS:
        module = importlib.import_module(name)
        path = Path(inspect.getfile(module)).relative_to(ROOT).as_posix()
        rows.append((f"[`{name}`](../../{path})", summary(module)))
    return "\n".join([*parts, table(("Module", "Content"), rows)]) + "\n"


def _function(name: str) -> str:
    thing = getattr(surgfl, name)
    rows = [(f"`{one}`", text) for one, text in sentences(thing).items()]
    parameters = "" if inspect.isclass(thing) else _parameters(thing)
    return (
        f"### surgfl.{name}\n\n`surgfl.{name}{parameters}`\n\n{summary(thing)}\n\n{table(('Name', 'Meaning'), rows)}\n"
    )


def _parameters(function: object) -> str:
    shown = []
    for one in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        stars = "**" if one.kind is one.VAR_KEYWORD else ""
        shown.append(stars + one.name + ("" if one.default is one.empty else f"={one.default!r}"))
    return f"({', '.join(shown)})"
