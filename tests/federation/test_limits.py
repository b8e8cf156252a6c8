"""Limits of a site for jobs, and limits for all jobs on both sides; errors name the key."""

import dataclasses
import json
import math
import resource

import pytest

from shared_components.core.bundle import load_bundle
from shared_components.core.task import choose_task
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError
from shared_components.federation.privacy.ledger import ledgers
from shared_components.federation.setup.limits import FILE, Limits, check_limits, limits_of
from shared_components.networks.forward_limits import forward_numbers
from tests.federation.conftest import TINY, Federation, make_job, rewritten


@pytest.fixture
def site(scenes, tmp_path):
    """Return a site whose description lies in a folder of its own."""
    return dataclasses.replace(load_site(scenes[0], name="site-1"), path=tmp_path / "site.yaml")


def check(job, site, **known):
    bundle = job.open_bundle()
    task = choose_task(bundle.tasks, site.task, classes=site.classes, who="site-1")
    check_limits(job, bundle, task, site, **known)


TOO_MUCH = {"iterations": 10_001, "batch_size": 257, "height": 4128, "width": 4128}


@pytest.mark.parametrize(
    "changes, key",
    [
        *(({"training": {key: much}}, f"training.{key} is {much}") for key, much in TOO_MUCH.items()),
        ({"training": {"height": 4096, "width": 4096, "batch_size": 17}}, "height x width is 285212672"),
        ({"rounds": 10_001}, "rounds is 10001"),
        ({"training": {"feature_cache_gb": 21, "flips": False, "crops": False}}, "training.feature_cache_gb is 21"),
        ({"longest_wait_seconds": 604_801}, "longest_wait_seconds is 604801"),
        ({"tasks": {"segmentation": {"frames": 65, "interval": 1.0}}}, "tasks.segmentation.frames is 65"),
        ({"arguments": {"sensitivity_images": 100_001}}, "arguments.sensitivity_images is 100001"),
        ({"bundle": "fedst", "network": {"window": 100_001}}, "network.window is 100001"),
    ],
)
def test_more_than_a_site_allows_is_refused_by_its_key(site, changes, key):
    with pytest.raises(SiteError, match=rf"site site-1: the job's .*{key}, and the site allows at most") as refused:
        check(make_job("fedavg", **{"training": {}, **changes}), site)
    assert f"in {site.path.with_name(FILE)}" in str(refused.value)


def test_as_much_as_a_site_allows_is_taken_and_a_network_is_measured_before_it_is_built(site):
    most = {"iterations": 10_000, "batch_size": 16, "height": 4096, "width": 4096}
    check(make_job("fedavg", training=most, rounds=10_000, arguments={}), site, sites=1000)
    check(make_job("pfedsis", arguments={"seed": 2**31}), site)  # a seed is no amount
    with pytest.raises(SiteError, match="number of sites is 1001"):
        check(make_job("fedavg"), site, sites=1001)
    job = make_job("fedst", network={"indicator": 90_000, "expansion": 90_000}, tasks={})
    with pytest.raises(SiteError, match=r"the job's network, in parameters, is .* at most 500000000; "):
        check(job, site)


MANY = [1] * 20_000


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"receptive_fields": MANY, "kernels": MANY}, "job .*: network has 40000 values; write at most 1000"),
        ({"receptive_fields": [[]] * 20_000}, "job .*: network has 20000 values"),
        ({"text": "x" * 1001}, "job .*: network.text is a text of 1001 characters"),
        ({"levels": [[[[[16]]]]]}, "job .*: network.levels is nested deeper than 4 levels"),
        ({f"a{n}": 1 for n in range(1001)}, "job .*: network has 1001 values"),
    ],
)
def test_a_long_network_section_is_refused_before_anything_is_built(network, words):
    with pytest.raises(ValueError, match=words):
        make_job("fedst", network=network, tasks={})


@pytest.fixture
def wide(site):
    """Return a function that checks a job of some network, at the size of the bundle's frames."""

    def wide(bundle="fedst", tasks=None, training=None, **network):
        sizes = {"height": 64, "width": 64, "batch_size": 2} | (training or {})
        check(make_job("fedavg", bundle=bundle, network=network, tasks=tasks or {}, training=sizes, arguments={}), site)

    return wide


FOUR = {"kernels": [1] * 4}
BIG = {"batch_size": 256, "height": 1024, "width": 1024}
LARGEST = "of the largest tensor of a batch, is"


@pytest.mark.parametrize(
    ("network", "words"),
    [
        # (heads, window^2, field^2) numbers: 5 x 100^2 x 300^2 for the first view, twice
        ({"window": 100, "receptive_fields": [300] * 4, **FOUR}, f"{LARGEST} 9000000000, .*'largest_tensor: 9"),
        ({"window": 50, "receptive_fields": [150] * 4, **FOUR}, f"network, in numbers {LARGEST}"),
        ({"window": 8, "receptive_fields": [8000, 8, 8, 8], **FOUR}, f"{LARGEST}|network, in parameters, is"),
        ({"window": 1, "receptive_fields": [1] * 65, "kernels": [1] * 65}, "frames of a clip, is 65, .* at most 64"),
        ({"receptive_fields": [100_001, 1, 1, 7]}, "network.receptive_fields is 100001, .* at most 100000"),
        ({"bundle": "fl_endovit_segmentation", "features": 128, "training": BIG}, LARGEST),
        ({"bundle": "fl_endovit", "size": 80_000}, "network, in parameters, is"),
    ],
)
def test_products_of_a_networks_arguments_are_refused_before_they_take_memory(wide, site, network, words):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SiteError, match=words) as refused:
        wide(**network)
    assert f"in {site.path.with_name(FILE)}" in str(refused.value) and "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000  # kilobytes


def test_a_site_may_allow_less_of_a_network(wide, site):
    wide(dropout=0.1)
    less = {"arguments": 3, "frames": 3, "parameters": 1000, "largest_tensor": 1000, "activations": 100_000}
    for limit, value in less.items():
        site.path.with_name(FILE).write_text(f"{limit}: {value}\n")
        with pytest.raises(SiteError, match=rf"at most {value}; make it less, or write '{limit}: \d+' in"):
            wide(receptive_fields=[21, 20, 6, 7])
    site.path.with_name(FILE).write_text("largest_tensor: 1000\n")
    wide()  # the bundle's own network was chosen by whoever installed it


def test_what_is_counted_of_a_pass_is_what_its_layers_compute():
    definition = {"_target_": "shared_components.networks.tiny.Tiny", "width": 8, "dropout": 0.0}
    computed = forward_numbers(json.dumps(definition), 3, (1, 3, 16, 24), largest=10**6, total=10**6)
    half, quarter = 8 * 8 * 12, 8 * 4 * 6
    assert computed.largest == 3 * 16 * 24  # the input's zeros are made before, the logits are as many
    layers = 3 * half + 3 * quarter + quarter + quarter + 3 * quarter + 3 * 4 * 6 + 3 * 16 * 24
    assert layers <= computed.total <= 1.3 * layers


def test_a_site_writes_its_own_limits(site):
    assert limits_of(site) == Limits()  # without a file the defaults hold
    site.path.with_name(FILE).write_text("iterations: 1\nbatch_size: 500\n")
    assert limits_of(site) == Limits(iterations=1, batch_size=500)
    with pytest.raises(SiteError, match=r"training.iterations is 2, .* at most 1; .* write 'iterations: 2' in"):
        check(make_job("fedavg"), site)
    check(make_job("fedavg", training={**TINY, "iterations": 1, "batch_size": 500}), site)


ODD = {"0": 0, "yes": True, "'3'": "'3'", "2.5": 2.5, ".nan": math.nan, "": None}


@pytest.mark.parametrize(
    "text, words",
    [
        ("iteration: 3", "unknown key 'iteration'; did you mean 'iterations'. known keys: rounds"),
        ("iterations: -1", "iterations is -1; it is a whole number"),
        *((f"iterations: {text}", f"iterations is {value}") for text, value in ODD.items()),
        ("", "it is None; write its settings as 'name: value'; known keys: rounds"),
        ("- 3", r"it is \[3\]; write its settings as"),
        *((text, "is not valid YAML") for text in ("iterations: [", "\x00")),
    ],
)
def test_a_wrong_file_is_refused_and_no_default_taken(site, text, words):
    site.path.with_name(FILE).write_text(text)
    with pytest.raises(SiteError, match=words) as refused:
        limits_of(site)
    assert str(site.path.with_name(FILE)) in str(refused.value)


def test_a_site_refuses_a_job_at_enrolment_that_is_too_large_or_lacks_demanded_noise(scenes, tmp_path):
    own = rewritten(scenes[0], tmp_path / "own")
    own.with_name(FILE).write_text("height: 16")
    with pytest.raises(FederationError, match=r"site site-1: the job's training.height is 32, .* at most 16"):
        Federation(make_job("fedavg"), tmp_path / "runs", [own], ["site-1"]).enrol()
    other = rewritten(scenes[1], tmp_path / "other")
    other.with_name(FILE).write_text("privacy: {noise_multiplier: 2}")
    own = rewritten(scenes[0], tmp_path / "adding", also_trains_on=str(other))
    with pytest.raises(FederationError, match="the job has no 'privacy', and the site demands noise"):
        Federation(make_job("fedavg"), tmp_path / "runs", [own], ("a",)).enrol()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"rounds": 10**12}, "rounds is 10{12}; it is a whole number, at least 1 and at most 1000000"),
        *(({"rounds": bad}, f"rounds is {bad}") for bad in (0, True, 2.0)),
        *(({key: 10**400}, f"{key} is") for key in ("min_sites", "client_fraction", "grace_seconds")),
        ({"client_fraction": 0}, "client_fraction is 0; it is a number, above 0 and at most 1"),
        *(({"client_fraction": bad}, f"client_fraction is {bad!r}") for bad in (-0.5, 1.5, math.nan, True, "half")),
        ({"grace_seconds": "1"}, "grace_seconds is '1'"),
        ({"longest_wait_seconds": 1e300}, "longest_wait_seconds is 1e\\+300"),
        ({"largest_change": math.inf}, "largest_change is inf"),
        ({"bundle": 3}, "bundle is 3; write a name"),
        ({"arguments": "no"}, "arguments is 'no'; write its settings as"),
        ({"training": [1]}, "training is \\[1\\]"),
        *(({key: 3}, f"{key} is 3") for key in ("tasks", "network")),
        ({"arguments": {"strength": 1e300}}, "arguments.strength is 1e\\+300; .* at most 1000000000"),
        *(({"arguments": {"strength": bad}}, "arguments.strength is ") for bad in (10**400, 1j)),
        ({"arguments": {"personal": ["x"] * 1001}}, "arguments has 1001 values"),
        ({"arguments": {"personal": "x" * 1001}}, "arguments.personal is a text of 1001 characters"),
        ({"arguments": {"a": {"b": {"c": {"d": {}}}}}}, "arguments.a.b.c.d is nested deeper"),
        ({"arguments": {3: 1}}, "arguments has the key 3"),
        ({"synthetic": {"height": 64_000}}, "synthetic.height is 64000; .* at most 4096"),
        ({"synthetic": {"frames_per_video": 0}}, "synthetic.frames_per_video is 0"),
        ({"synthetic": {"videos": [1, 1]}}, "synthetic.videos is \\[1, 1\\]"),
        ({"synthetic": {"videos": [1, 1, 10**7]}}, "synthetic.videos\\[3\\] is 10000000"),
        ({"synthetic": {"clip": "4"}}, "synthetic.clip is '4'"),
    ],
)
def test_a_job_says_nothing_out_of_its_type_and_range(changes, words):
    with pytest.raises(ValueError, match=f"job.*: {words}"):
        make_job("fedavg", **changes)


@pytest.mark.parametrize(
    "key", ["height", "width", "batch_size", "iterations", "rounds", "learning_rate", "weight_decay"]
)
@pytest.mark.parametrize("value", [-1, 10**12, 10**400, math.nan, "8", True, None, [8]])
def test_a_training_section_says_nothing_out_of_its_type_and_range(key, value):
    with pytest.raises(ValueError, match=f"training: {key} is "):
        load_bundle("pvt_fpn", {key: value})


def test_a_link_to_a_site_has_the_limits_and_the_account_of_the_file(scenes, tmp_path):
    real, link = rewritten(scenes[0], tmp_path / "data"), tmp_path / "site.yaml"
    real.with_name(FILE).write_text("rounds: 5")
    link.symlink_to(real)
    assert limits_of(load_site(link)).rounds == 5 and ledgers(load_site(link)) == ledgers(load_site(real))
    link.with_name(FILE).write_text("rounds: 10000")
    with pytest.raises(SiteError, match=r"is a link, and .* both limit what a job may ask; remove one"):
        limits_of(load_site(link))
    real.with_name(FILE).unlink()
    link.with_suffix(".privacy.jsonl").touch()
    with pytest.raises(SiteError, match=r"is an account beside a link to the site; move its lines into .*data"):
        ledgers(load_site(link))
    assert limits_of(load_site(link)).rounds == 10000
