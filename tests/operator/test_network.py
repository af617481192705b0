"""What network policies say of a run."""

from shoal_operator.children.network import url_ports


def test_ports_of_urls_are_found_and_what_is_no_url_has_none() -> None:
    urls = ["https://s3.example", "http://[fd00::1]:9000", "http://[fd00::1:9000", "http://minio:nine", "http://minio"]
    assert url_ports(urls) == [80, 443, 9000]
