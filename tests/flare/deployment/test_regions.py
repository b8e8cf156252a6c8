"""A region of a federation file: kits of its relay and node, and sites that connect only to the relay."""

import json

import pytest
from cryptography import x509

from shared_components.cli import main
from shared_components.flare.deployment.federation_file import FederationFileError, parse_federation
from shared_components.flare.deployment.kits import CHECK, OUR_RELAY, KitError, find_kit, open_problem, secure
from shared_components.flare.provision import add, provision
from tests.flare.simulator import edit

REGION = {
    "name": "north", "organisation": "network", "host": "relay.example.org", "port": 9100, "sites": ["hospital-a"],
}  # fmt: skip


def read(kit, name):
    return json.loads((kit / name).read_text())


@pytest.fixture
def out(described, tmp_path):
    described["regions"] = [REGION]
    provision(parse_federation(described), tmp_path / "kits")
    return tmp_path / "kits"


def test_a_site_connects_to_its_relay_by_mutual_tls_and_takes_tasks_from_its_node(out):
    relay = read(out / "hospital-a", "local/relay__resources.json")["relay_config"]
    assert relay["address"] == "relay.example.org:9100" and relay["connection_security"] == "mtls"
    client, node = (read(out / name, "startup/fed_client.json")["client"] for name in ("hospital-a", "north"))
    assert (client["fqsn"], client["is_leaf"]) == ("north.hospital-a", True)
    assert (node["fqsn"], node["is_leaf"]) == ("north", False)
    up = read(out / "north-relay", "startup/fed_relay.json")["connect_to"]
    assert up["address"] == "localhost:8002" and up["connection_security"] == "mtls"
    down = read(out / "north-relay", "local/comm_config.json")
    assert down["internal"]["resources"]["port"] == 9100 and not down["allow_adhoc_conns"]
    served = x509.load_pem_x509_certificate((out / "north-relay/startup/server.crt").read_bytes())
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["relay.example.org"]


def test_a_node_is_secured_like_a_site_without_data_and_a_relay_runs_our_program(out):
    assert [find_kit(out / name).part for name in ("north", "north-relay", "hospital-a")] == ["region", "relay", "site"]
    site, node = (read(out / name, "local/resources.json") for name in ("hospital-a", "north"))
    assert node["class_allow_list"] == site["class_allow_list"] and not node["allow_log_streaming"]
    assert (
        not (out / "north" / "local" / "site.yaml").exists() and not (out / "north" / "local" / "privacy.json").exists()
    )
    script = (out / "north-relay" / "startup" / "sub_start.sh").read_text()
    assert f"-m {OUR_RELAY} " in script and CHECK in script and "nvflare.private.fed.app.relay" not in script
    for name in ("north", "north-relay"):
        assert open_problem(find_kit(out / name)) == "" and secure(find_kit(out / name)) == []


@pytest.mark.parametrize("key", ["allow_adhoc_conns", "internal"])
def test_a_relay_that_would_accept_anybody_does_not_start(out, key):
    kit = find_kit(out / "north-relay")
    change = {"allow_adhoc_conns": True, "internal": {"scheme": "http", "resources": {"connection_security": "clear"}}}
    edit(kit.local / "comm_config.json", lambda values: values.update({key: change[key]}))
    assert f"{key} would not restrict jobs and messages" in open_problem(kit)
    secure(kit)
    assert open_problem(kit) == ""


def test_a_later_site_joins_a_region_and_no_other_kit_changes(out, described):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "ca" not in path.parts}
    described["sites"].append({"name": "hospital-b", "organisation": "hospital_b"})
    described["regions"] = [{**REGION, "sites": ["hospital-a", "hospital-b"]}]
    (kit,) = add(parse_federation(described), out)
    assert read(kit.folder, "startup/fed_client.json")["client"]["fqsn"] == "north.hospital-b"
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(KitError, match="hospital-a: region is 'south', but the certificate was issued with 'north'"):
        add(parse_federation({**described, "regions": [{**described["regions"][0], "name": "south"}]}), out)


def test_each_person_is_told_where_to_connect(described, tmp_path, capsys):
    described["regions"] = [REGION]
    (tmp_path / "federation.yaml").write_text(json.dumps(described))
    assert main(["provision", str(tmp_path / "federation.yaml"), "--out", str(tmp_path / "kits")]) == 0
    printed = capsys.readouterr().out
    assert "everybody connects to localhost, port 8002, the sites of a region and its node to its relay" in printed
    assert "north, hospital-a: relay.example.org, port 9100" in printed and "no longer in the file" not in printed
    assert "relay: install SurgFL next to its region's node" in printed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ["hospital-c"]}, "names 'hospital-c', which is no site of the file"),
        ({"sites": ["hospital-a", "hospital-a"]}, "the name 'hospital-a' is given twice"),
        ({"name": "hospital-a"}, "the name 'hospital-a' is given twice"),
        ({"name": "server"}, r"regions\[1\].name is 'server', reserved or too long"),
        ({"name": "n" * 60}, "reserved or too long"),
    ],
)
def test_a_wrong_region_is_refused(described, changes, words):
    described["regions"] = [{**REGION, **changes}]
    with pytest.raises(FederationFileError, match=words):
        parse_federation(described)


def test_every_site_is_in_a_region_if_there_are_regions_and_no_site_is_called_a_relay(described):
    described["sites"].append({"name": "hospital-b", "organisation": "hospital_b"})
    described["regions"] = [REGION]
    with pytest.raises(FederationFileError, match="'hospital-b' is in no region; put every site into one"):
        parse_federation(described)
    described["sites"][1]["name"] = "north-relay"
    with pytest.raises(FederationFileError, match=r"sites\[2\].name is 'north-relay', which is reserved"):
        parse_federation(described)
