"""What network policies say of a run."""

from run_story import MANIFEST

from shoal_operator.api import TrainingRun
from shoal_operator.children.network import network_policies, url_ports
from shoal_operator.children.own_kinds import References, relays_of


def test_ports_of_urls_are_found_and_what_is_no_url_has_none() -> None:
    urls = ["https://s3.example", "http://[fd00::1]:9000", "http://[fd00::1:9000", "http://minio:nine", "http://minio"]
    assert url_ports(urls) == [80, 443, 9000]


def test_names_are_looked_up_at_the_ports_of_a_service_and_of_openshifts_pods() -> None:
    run = TrainingRun.model_validate(MANIFEST)
    found = network_policies(run, relays_of(run, References()))
    [worker] = [each for each in found if each["metadata"]["name"] == "sums-pool"]
    names = {
        (each["port"], each["protocol"])
        for rule in worker["spec"]["egress"]
        if "to" not in rule
        for each in rule["ports"]
    }
    assert names == {(port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")}
