"""An authority for one benchmark, and certificates of it, made by the `openssl` program."""

import subprocess
from pathlib import Path


class Authority:
    """`certificate` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        _make(self.certificate, self._key, "authority", "-addext", "basicConstraints=critical,CA:TRUE")

    def issue(self, folder: Path, address: str) -> None:
        """`tls.crt` and `tls.key` in `folder`, as a Kubernetes Secret has them."""
        folder.mkdir(parents=True)
        signed_by = ("-CA", str(self.certificate), "-CAkey", str(self._key))
        _make(folder / "tls.crt", folder / "tls.key", "relay", *signed_by, "-addext", f"subjectAltName=IP:{address}")


def _make(certificate: Path, key: Path, name: str, *options: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    places = ["-days", "2", "-subj", f"/CN={name}", "-out", str(certificate), "-keyout", str(key)]
    done = subprocess.run([*command, *places, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl req: {done.stderr.strip()[-300:]}")
