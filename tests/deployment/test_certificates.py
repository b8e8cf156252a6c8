"""Whether a kit's certificate lets its party in."""

from datetime import UTC, datetime, timedelta

import pytest

from shared_components.cli import main
from shared_components.deployment.certificates import ends, why_outside
from shared_components.deployment.federation_file import parse_federation
from shared_components.deployment.kits import KitError, find_kit
from shared_components.flare.provision import provision

from ..production.prepared import sign_again
from .conftest import NAMES

DAY = timedelta(days=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_kit_is_let_in_until_its_certificate_ends(kits, name):
    kit, now = find_kit(kits / name), datetime.now(UTC)
    assert why_outside(kit) == "" and why_outside(kit, now=now + 39 * DAY) == ""
    assert "its certificate ended on " in why_outside(kit, now=now + 41 * DAY)
    assert "this machine's clock says" in why_outside(kit, now=now - DAY)
    assert timedelta(days=39) < ends(kit) - now <= timedelta(days=40)


def test_a_root_that_ends_first_counts(kits):
    now = datetime.now(UTC)
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + 1000 * DAY)
    kit = find_kit(kits / "hospital-a")
    assert why_outside(kit) == "" and ends(kit) - now <= timedelta(days=100)
    assert "the federation's authority ended on " in why_outside(kit, now=now + 101 * DAY)


def test_a_foreign_and_an_expired_certificate_are_told_by_the_command(kits, described, tmp_path, capsys):
    now = datetime.now(UTC)
    provision(parse_federation(described), tmp_path / "foreign")
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + DAY, by=tmp_path / "foreign")
    assert main(["secure-kit", str(kits / "hospital-a")]) == 1
    assert "is not of the authority whose rootCA.pem lies beside it" in capsys.readouterr().out
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now - DAY)
    assert main(["secure-kit", str(kits / "hospital-a")]) == 1
    assert "ended on" in capsys.readouterr().out
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now + DAY)
    assert main(["secure-kit", str(kits / "hospital-a")]) == 0
    assert "ask for a renewed kit" in capsys.readouterr().out


def test_a_certificate_that_cannot_be_read_is_named(kits):
    (kits / "hospital-a" / "startup" / "client.crt").write_text("none")
    with pytest.raises(KitError, match=r"client\.crt: cannot be read"):
        why_outside(find_kit(kits / "hospital-a"))


def test_an_administrators_certificate_that_has_ended_is_told_before_anything_is_connected(kits, capsys):
    name, now = next(name for name in NAMES if "@" in name), datetime.now(UTC)
    sign_again(kits, name, begins=now - 2 * DAY, ends=now - DAY)
    assert main(["job", "list", "--admin", str(kits / name)]) == 2
    said = capsys.readouterr().err
    assert (
        "its certificate ended on " in said
        and said.endswith("ask for a renewed kit\n")
        and said.count("\n") == 1
    )
