"""`POST /v1/staging`: the folder store's side of an upload grant, as S3 does it: a multipart form, the policy's fields first, the file last.

The body is parsed as it streams in. The file part is read only after the fields before it were checked, and never beyond the
granted size. So a stranger can neither fill memory nor disk. Called by `orchestrator`; only with a folder store, or one of Azure or Google.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from shoal.contracts.problems import ProblemCode, Refusal
from shoal.orchestrator.work.leases import upload_seconds
from shoal.transport.patience import IDLE_SECONDS, within

MAX_FIELDS = 16
MAX_FIELD_BYTES = 8192
MAX_HEADER_BYTES = 4096

GrantCheck = Callable[[dict[str, str]], tuple[str, int]]
"""Fields of the form in, key and greatest size (bytes) out; raises `Refusal`."""


class StagingForm:
    """Parser of one posted form. `write` takes the body piece by piece; afterwards `key` and `size` describe the file in `sink`."""

    def __init__(self, content_type: str, check: GrantCheck, sink: IO[bytes]) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise Refusal(
                ProblemCode.NOT_A_FORM,
                "post multipart/form-data: the fields of the upload grant, then the file as `file`",
            )
        self.key: str | None = None
        self.size = 0
        self._check = check
        self._sink = sink
        self.max_bytes = 0
        self._fields: dict[str, str] = {}
        self._name: str | None = None
        self._value = bytearray()
        self._header = bytearray()
        self._header_value = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            options[b"boundary"],
            callbacks={
                "on_part_begin": self._part_begins,
                "on_header_field": lambda data, start, end: self._grow(self._header, data[start:end], MAX_HEADER_BYTES),
                "on_header_value": lambda data, start, end: self._grow(
                    self._header_value, data[start:end], MAX_HEADER_BYTES
                ),
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._form_ends,
            },
        )

    def write(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise Refusal(ProblemCode.FORM_NOT_VALID, str(error)[:200]) from error

    def finish(self) -> tuple[str, int]:
        """Key and size of the received file; raises `Refusal` when the form broke off or had no file."""
        if not self._ended or self.key is None:
            raise Refusal(ProblemCode.FORM_NOT_VALID, "post every field of the grant and then the file as `file`")
        return self.key, self.size

    def _grow(self, buffer: bytearray, data: bytes, limit: int) -> None:
        if len(buffer) + len(data) > limit:
            raise Refusal(ProblemCode.FORM_FIELD_TOO_LARGE, f"a field has at most {limit} bytes")
        buffer += data

    def _part_begins(self) -> None:
        if self.key is not None:
            raise Refusal(ProblemCode.FORM_NOT_VALID, "the file must be the last part of the form")
        if len(self._fields) >= MAX_FIELDS:
            raise Refusal(ProblemCode.FORM_NOT_VALID, f"a form has at most {MAX_FIELDS} fields")
        self._name = None
        self._value.clear()

    def _header_ends(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._header_value))
            self._name = options.get(b"name", b"").decode(errors="replace")
        self._header.clear()
        self._header_value.clear()

    def _headers_end(self) -> None:
        if self._name == "file":
            self.key, self.max_bytes = self._check(self._fields)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self.key is None:
            self._grow(self._value, data[start:end], MAX_FIELD_BYTES)
            return
        self.size += end - start
        if self.size > self.max_bytes:
            raise Refusal(ProblemCode.FILE_TOO_LARGE, f"the grant allows {self.max_bytes} bytes")
        self._sink.write(data[start:end])

    def _part_ends(self) -> None:
        if self.key is None and self._name:
            self._fields[self._name] = bytes(self._value).decode(errors="replace")

    def _form_ends(self) -> None:
        self._ended = True


def temporary_file(folder: Path) -> Any:
    """A file that vanishes by itself, for one upload in flight."""
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.NamedTemporaryFile(dir=folder, prefix="upload-")


async def receive_form(
    content_type: str, body: AsyncIterator[bytes], check: GrantCheck, sink: IO[bytes]
) -> tuple[str, int]:
    """Read a posted form; the file's bytes go to `sink`. Returns key and size. Raises `Refusal`."""
    form = StagingForm(content_type, check, sink)
    try:
        async for chunk in within(body, lambda: upload_seconds(form.max_bytes)):
            form.write(chunk)
    except TimeoutError:
        raise Refusal(
            ProblemCode.UPLOAD_TOO_SLOW,
            f"a pause of {IDLE_SECONDS:.0f} s, or {upload_seconds(form.max_bytes):.0f} s in all: ask for a new grant and try again",
        ) from None
    key, size = form.finish()
    sink.flush()
    return key, size
