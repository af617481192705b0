"""What certificates of other parts are held to: a file with certificates of authorities in PEM, or the well-known ones."""

import ssl
from pathlib import Path


def authorities(path: Path) -> ssl.SSLContext | None:
    """The authorities in `path`, and no others; None (the well-known ones) where there is no such file. Raises ValueError for rubbish."""
    if not path.is_file():
        return None
    try:
        return ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"{path} has no certificate that can be read: put the PEM of the authority there") from error
