"""What a site reports beside its weights has a range, and a cap relative to what the others report."""

import pytest
import torch

from shared_components.core.card import Card
from shared_components.core.method import Profile, Update, load_method
from shared_components.federation.server.enrolment import outlying_counts
from shared_components.federation.server.update_checks import RejectedUpdate, check_extras, outlying_extras
from tests.federation.conftest import make_job

SHARED = {"a": torch.zeros(2), "b": torch.zeros(1)}


def updates(*sizes):
    """Return updates whose largest sensitivity is in one element of one tensor."""
    return [
        Update(f"site-{n}", 0, SHARED, {"sensitivity": {"a": torch.tensor([0.0, size]), "b": torch.zeros(1)}})
        for n, size in enumerate(sizes, 1)
    ]


@pytest.mark.parametrize(
    "sizes, named",
    [
        ((16.7, 12.4, 17.4), []),
        ((446.0, 2932.0, 82.0), []),  # traces of Fisher matrices differ so at honest sites
        ((16.7, 1e9, 17.4), ["site-2"]),
        ((3e38, 12.4, 17.4), ["site-1"]),
        ((1e-3, 2e-3, 0.9), []),  # below 1 a softmax hardly moves
        ((1e-3, 2e-3, 1.1), ["site-3"]),
        ((0.0, 12.4, 17.4), []),  # one that says nothing makes nobody else look large
        ((16.7, 1e9), []),
        ((16.7, 1e9, 1e9, 15.0, 14.0), ["site-2", "site-3"]),
    ],
)
def test_who_reports_far_more_than_the_others_is_named_and_nobody_else(sizes, named):
    assert sorted(outlying_extras(updates(*sizes))) == named


@pytest.mark.parametrize("size", [2e9, 3e38])
@pytest.mark.parametrize("name, group", [("pfedsis", "sensitivity"), ("qfedavg", "loss"), ("fedas", "fisher")])
def test_an_extra_beyond_its_range_is_refused_even_of_a_single_site(name, group, size):
    method = load_method(name)
    pieces = (
        {"a": torch.tensor([0.1, size]), "b": torch.zeros(1)} if name == "pfedsis" else {"value": torch.tensor(size)}
    )
    with pytest.raises(RejectedUpdate, match=rf"its {group} goes up to \S+; at most 1e\+09"):
        check_extras({group: pieces}, method.local.extras, SHARED, method=name)


@pytest.mark.parametrize(
    "counts, named", [((40, 60, 8000), []), ((40, 60, 10**9), ["site-3"]), ((1, 9000, 8000), []), ((4, 10**9), [])]
)
def test_who_claims_far_more_samples_than_the_others_is_named(counts, named):
    profiles = {f"site-{n}": Profile(f"site-{n}", count, Card("depth")) for n, count in enumerate(counts, 1)}
    assert list(outlying_counts(profiles)) == named


def test_an_inflated_sensitivity_is_left_out_and_the_round_goes_on(federate):
    federation = federate(make_job("pfedsis", rounds=1, min_sites=2)).enrol()
    replies = federation.replies()
    first = next(iter(replies["site-2"].groups["sensitivity"].values()))
    first.view(-1)[0] = 1e8
    (rejected,) = federation.send(replies)["rejected"]
    assert rejected["site"] == "site-2" and "its sensitivity goes up to 1e+08" in rejected["reason"]
