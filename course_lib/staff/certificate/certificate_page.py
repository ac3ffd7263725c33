"""A certificate as a page, and back: the record stands in the page, a seal on its last line. Needs Jinja2.

The seal of a claim is a SHA-256 of all bytes before it, which shows damage and proves nothing. The seal of a
confirmed certificate is a signature of them. Either way no visible word can change without the seal.
"""

import hashlib
import html
import re
from dataclasses import dataclass

from course_lib.staff.certificate.record import Record, Refused
from course_lib.staff.html_page import page

LARGEST_BYTES = 5_000_000
_RECORD = re.compile(r'<pre id="record" tabindex="0">([^<]*)</pre>')
_SEAL = re.compile(rb"<!-- course (claim|signature) ([0-9a-z]{1,64}) ([0-9A-Za-z+/=]{1,200}) -->\n")


@dataclass(frozen=True)
class Sealed:
    """A certificate's file, taken apart.

    body   all bytes before the seal
    key    the id of the class key; None for a claim
    proof  the signature, or the claim's SHA-256
    """

    record: Record
    body: bytes
    key: str | None
    proof: str


def claim_page(record: Record) -> bytes:
    """A learner's page, with their answers in it."""
    body = page("certificate.html", record=record, key=None).encode()
    return body + f"<!-- course claim sha256 {hashlib.sha256(body).hexdigest()} -->\n".encode()


def confirmed_body(record: Record, key: str, day: str) -> bytes:
    """What an instructor signs: `signed_page` adds the signature.

    record  without answers
    """
    return page("certificate.html", record=record, key=key, day=day).encode()


def signed_page(body: bytes, key: str, signature: str) -> bytes:
    """The confirmed certificate."""
    return body + f"<!-- course signature {key} {signature} -->\n".encode()


def opened(content: bytes) -> Sealed:
    """A certificate taken apart; its digests are checked here, its signature is not.

    Raises  Refused, in one line, for a file that is none, is cut off or was changed
    """
    body, _, last = content[:-1].rpartition(b"\n") if len(content) <= LARGEST_BYTES else (b"", b"", b"")
    body, seal = body + b"\n", _SEAL.fullmatch(last + content[-1:])
    found = _RECORD.findall(body.decode("utf-8", "replace"))
    if len(found) != 1 and not seal:
        raise Refused("this is no certificate of this course")
    if not seal or len(found) != 1:
        raise Refused("the certificate is cut off or was added to; ask for the file as it was made")
    kind, key, proof = (part.decode() for part in seal.groups())
    record, digest = Record.from_json(html.unescape(found[0]))
    if kind == "claim" and proof != hashlib.sha256(body).hexdigest():
        raise Refused("the claim was changed after it was made: its SHA-256 differs; ask for the file as it was made")
    if digest != record.digest:
        raise Refused("the record was changed: its digest is not that of the name, points and answers beside it")
    return Sealed(record, body, None if kind == "claim" else key, proof)
