"""Every key of a federation file is checked."""

import copy

import pytest
import yaml

from shared_components.flare.deployment.federation_file import (
    EXAMPLE,
    ROLES,
    FederationFileError,
    Lifetimes,
    load_federation,
    parse_federation,
)

SMALL = {
    "name": "f",
    "server": {"host": "localhost", "organisation": "o"},
    "sites": [{"name": "a", "organisation": "o"}],
    "administrators": [{"email": "x@y.org", "organisation": "o", "role": "lead"}],
}


def changed(path, value):
    """Return SMALL with one value changed; None removes the key."""
    values = copy.deepcopy(SMALL)
    *folders, last = path
    place = values
    for key in folders:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return values


def test_the_example_has_every_role_and_key_and_optional_keys_have_defaults():
    example = load_federation(EXAMPLE)
    assert example.server.port == example.server.admin_port == 8002 and example.certificates == Lifetimes()
    assert {person.role for person in example.administrators} == set(ROLES)
    values = yaml.safe_load(EXAMPLE.read_text())
    assert set(values) == {"name", "server", "sites", "administrators", "certificates"}
    assert set(values["server"]) == {"host", "organisation", "port", "admin_port"}
    small = parse_federation(SMALL)
    assert (small.server.port, small.server.admin_port) == (8002, 8002) and small.certificates == Lifetimes(730, 3650)
    assert parse_federation(changed(["server", "port"], 9000)).server.admin_port == 9000


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["name"], "two words", "name is 'two words'; write letters"), (["name"], "../up", "name is '../up'"),
        (["name"], 7, "name is 7"), (["name"], None, "'name' is missing; add it"),
        (["name"], "n" * 64, "at most 63 letters"), (["colour"], "red", "unknown key 'colour'; known keys: name"),
        (["server"], "localhost", "server is 'localhost'; write its settings"),
        (["server", "host"], "no_host!", "server.host is"), (["server", "host"], "-a.example.org", "server.host is"),
        (["server", "host"], "a\n", "server.host is"),
        (["server", "port"], 0, "server.port is 0; it is a whole number, at least 1 and at most 65535"),
        (["server", "port"], 70000, "server.port is 70000"), (["server", "port"], "8002", "server.port is '8002'"),
        (["server", "port"], True, "server.port is True"), (["server", "port"], float("nan"), "server.port is nan"),
        (["server", "organisation"], "Great Hospital", "server.organisation is"),
        (["sites"], [], "sites is []; write a list of at least one"), (["sites"], {"a": 1}, "sites is {'a': 1}"),
        (["sites", 0, "name"], "a b", "sites[1].name is 'a b'"),
        (["sites", 0, "name"], "../a", "sites[1].name is '../a'"), (["sites", 0, "name"], "a\n", "sites[1].name is"),
        (["sites", 0, "name"], "Server", "is 'Server', which is reserved"),
        (["sites", 0, "name"], "ca", "is 'ca', which is reserved"),
        (["sites", 0, "name"], "LOCALHOST", "'localhost' is given twice (or is the server's)"),
        (["sites"], [SMALL["sites"][0], {"name": "A", "organisation": "o"}], "the name 'A' is given twice"),
        (["sites", 0, "role"], "lead", "unknown key 'sites[1].role'"),
        (["administrators"], SMALL["administrators"] * 2, "the name 'x@y.org' is given twice"),
        (["administrators", 0, "email"], "anna", "administrators[1].email is 'anna'; write an e-mail address"),
        (["administrators", 0, "email"], "../x@y.org", "administrators[1].email is"),
        (["administrators", 0, "role"], "boss", "role is 'boss'; use one of project_admin, org_admin, lead"),
        (["administrators", 0, "role"], ["lead"], "role is ['lead']"),
        (["administrators", 0, "role"], "member", "nobody may submit a job; give one of them the role project_admin"),
        (["certificates"], {"days": 0}, "certificates.days is 0; it is a whole number, at least 1"),
        (["certificates"], {"days": 40, "root_days": 30}, "more than the 30 of root_days"),
        (["certificates"], {"root_days": 10**9}, "certificates.root_days is 1000000000"),
        (["certificates"], {"hours": 3}, "unknown key 'certificates.hours'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_key(path, value, words):
    with pytest.raises(FederationFileError) as refused:
        parse_federation(changed(path, value))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is None; write its settings"), ("- 1", "it is [1]"), ("name: [", "is not valid YAML"),
        ("name: a\nname: b", "key 'name' is given twice"), ("a: &a [*a]", "refers to itself"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_description_is_named(tmp_path, text, words):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(FederationFileError, match=f"^{path}: ") as refused:
        load_federation(path)
    assert words in str(refused.value)


def test_a_missing_file_is_refused_with_the_command_for_a_template(tmp_path):
    with pytest.raises(FederationFileError, match=r"write a template by surgfl provision --example .*f\.yaml"):
        load_federation(tmp_path / "f.yaml")
    with pytest.raises(FederationFileError, match="cannot be read"):
        load_federation(tmp_path)
