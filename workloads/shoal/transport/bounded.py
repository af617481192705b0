"""The body of an answer, up to a bound, for every client that keeps one: a server may send any amount.

No encoding is asked for and none is undone. zstd and its like unpack ten kilobytes to a gigabyte before anybody can count.
"""

import httpx

UNENCODED = {"Accept-Encoding": "identity"}
"""Headers that every request has whose answer is read by `body_of`."""


class AnswerTooLong(httpx.DecodingError):
    """A body of more bytes than its reader takes."""


def body_of(answer: httpx.Response, most: int) -> bytes:
    """The bytes of a streamed answer as they came; at most `most`, and one piece of the network's, are ever held.

    Raises `AnswerTooLong`, and `httpx.DecodingError` for an encoding that was not asked for.
    """
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise httpx.DecodingError(f"the answer has Content-Encoding {encoding[:40]!r}; asked for: identity")
    body = bytearray()
    for piece in answer.iter_bytes():  # as they came: there is no encoding
        body += piece
        if len(body) > most:
            raise AnswerTooLong(f"answer is longer than {most} bytes")
    return bytes(body)
