"""The pages of settings: job, site.yaml and limits.yaml."""

import inspect

from evidence.reference.declared import HEAD, default_words, kind_words, schema_table, sentences, table
from evidence.reference.lists import kinds_of_task
from shared_components.core.prompting import prompting_of
from shared_components.core.task import sample_spec
from shared_components.core.training_settings import Training
from shared_components.data.custom.description import KEYS as OWN_KEYS
from shared_components.data.site import PUBLISHABLE, WITHHOLDABLE
from shared_components.data.site_file import KEYS, MEANINGS
from shared_components.federation.messages.job import SYNTHETIC, SYNTHETIC_KEYS, Job
from shared_components.federation.privacy.gaussian import Privacy
from shared_components.federation.secure_sums.job_section import SecureSums
from shared_components.federation.setup.find_site import SYNTHETIC as DEFAULTS
from shared_components.federation.setup.limits import Demand, Limits

SHARED = {
    name: text for name, text in (sentences(sample_spec) | sentences(prompting_of)).items()
    if name not in ("kind", "targets", "spec")
}  # fmt: skip
PAGE_SECTIONS = ("training", "tasks", "synthetic", "privacy", "secure_sums")


def job_settings() -> str:
    """Return the page of a job's settings."""
    synthetic = [
        (f"`{key}`", meaning, default_words(DEFAULTS[key]), kind_words(SYNTHETIC.get(key, list)))
        for key, meaning in SYNTHETIC_KEYS.items()
    ]
    return f"""\
# Job settings

Settings of a federation, under `args` in a job's `app/config/config_fed_server.json`.
[Run a job](../how-to/run-a-job.md#all-settings-of-a-job) has an example. An unknown key is refused.

{schema_table(Job, sections=PAGE_SECTIONS)}

## training

Defaults are the library's; a bundle's `train.yaml` and `paper.yaml` replace some of them, and a job replaces both.

{schema_table(Training, leave_out=["rounds"])}

## tasks

{chr(10).join(map(_task_section, kinds_of_task()))}
### Samples and prompts

Settings that several tasks share.

{_shared_settings()}

## synthetic

{table(HEAD, synthetic)}

## privacy

[Privacy](../explanation/privacy.md) explains the noise and its account.

{schema_table(Privacy)}

## secure_sums

[Secure aggregation](../how-to/secure-sums.md) explains the protocol.

{schema_table(SecureSums)}
"""


def _task_section(kind: str) -> str:
    said = sentences(kinds_of_task()[kind].build)
    rows = [
        (f"`{name}`", said[name], default_words(default))
        for name, default in _defaults(kind).items()
        if name not in SHARED
    ]
    return f"### {kind}\n\n{table(HEAD[:3], rows)}\n"


def _shared_settings() -> str:
    defaults = {kind: _defaults(kind) for kind in kinds_of_task()}
    rows = []
    for name, meaning in SHARED.items():
        kinds = [kind for kind, own in defaults.items() if name in own]
        (default,) = {default_words(defaults[kind][name]) for kind in kinds}
        rows.append((f"`{name}`", meaning, default, "all" if len(kinds) == len(defaults) else ", ".join(kinds)))
    return table((*HEAD[:3], "Tasks"), rows)


def _defaults(kind: str) -> dict[str, object]:
    parameters = inspect.signature(kinds_of_task()[kind].build).parameters
    return {name: one.default for name, one in parameters.items() if name != "classes"}


def site_yaml() -> str:
    """Return the page of site.yaml's keys."""

    def rows(own: bool) -> list[tuple[str, ...]]:
        names = [name for name in KEYS if (name in OWN_KEYS) == own]
        return [(f"`{name}`", *_said(name), kind_words(KEYS[name])) for name in names]

    return f"""\
# site.yaml

A hospital's description of its data, on its own disk. [Describe your data](../how-to/your-data.md) has examples.
Unknown keys are errors.

{table(HEAD, rows(False))}

Items for `publish`: {_listed(PUBLISHABLE)}. Items for `withhold`: {_listed(WITHHOLDABLE)}.

## Data of your own

More keys with `dataset: frames` or `dataset: nifti`.

{table(HEAD, rows(True))}
"""


def _said(name: str) -> tuple[str, str]:
    default, meaning = MEANINGS[name]
    plain = default in ("required", "none") or " " in default
    return meaning, default if plain else f"`{default}`"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def limits_yaml() -> str:
    """Return the page of limits.yaml's keys."""
    return f"""\
# limits.yaml

Largest values that a site accepts from a job, in a file beside `site.yaml`. The site refuses larger values before it
builds a network. Unknown keys are errors.

{schema_table(Limits, sections=["privacy"])}

## privacy

If one of these keys is set, the site refuses jobs with less noise or none.

{schema_table(Demand)}
"""
