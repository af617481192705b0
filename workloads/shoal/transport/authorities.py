"""What certificates of other parts are held to: a file with certificates of authorities in PEM, or the well-known ones. A part that speaks to a
service outside the run trusts those of its `ca/ca.crt` beside the well-known ones.
"""

import functools
import os
import ssl
from pathlib import Path

import certifi

VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where the libraries look that speak HTTP: httpx and Go programs, requests, curl."""


def trust_also(more: Path, bundle: Path) -> None:
    """Make every library of this process, and of those that it starts, trust the authorities in `more` beside the usual ones; nothing where it is not
    there. `bundle` is written with all of them. Raises ValueError for rubbish."""
    if authorities(more) is None:
        return
    usual = os.environ.get(VARIABLES[0]) or ssl.get_default_verify_paths().cafile or certifi.where()
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(Path(usual).read_bytes() + b"\n" + more.read_bytes())
    os.environ.update(dict.fromkeys(VARIABLES, str(bundle)))


def well_known() -> ssl.SSLContext:
    """What a server outside the run is held to: `SSL_CERT_FILE`, or the authorities that browsers know. Read once a process (25 ms)."""
    return _context(os.environ.get(VARIABLES[0]) or certifi.where())


_context = functools.cache(lambda bundle: ssl.create_default_context(cafile=bundle))


def authorities(path: Path) -> ssl.SSLContext | None:
    """The authorities in `path`, and no others; None (the well-known ones) where there is no such file. Raises ValueError for rubbish."""
    if not path.is_file():
        return None
    try:
        return ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"{path} has no readable certificate: put the PEM of the authority there") from error
