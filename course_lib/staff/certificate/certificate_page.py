"""A certificate as a page, and back: the record stands in the page, a seal on its last line. Needs nothing.

The seal of a claim is a SHA-256 of all bytes before it, which shows damage and proves nothing. The seal of a
confirmed certificate is a signature of them. Either way no visible word can change without the seal.
"""

import hashlib
import hmac
import html
import re
from dataclasses import dataclass

from course_lib.staff.certificate.record import Record, Refused
from course_lib.staff.grade.html_page import page, shown, table

LARGEST_BYTES = 5_000_000
_RECORD = re.compile(r'<pre id="record" tabindex="0">([^<]*)</pre>')
_SEAL = re.compile(rb"<!-- course (claim|signature) ([0-9a-z]{1,64}) ([0-9A-Za-z+/=]{1,200}) -->\n")
_CLAIM = (
    "This is the learner's own claim. Nobody has confirmed it: the course runs on the learner's machine, which could "
    "have written anything here. An instructor can: `course verify` runs the answers that it carries again, on fresh "
    "inputs."
)
_CONFIRMED = (
    "The holder of the class key named below ran these answers again, on fresh inputs that the learner could not "
    "foresee, and every question was right. The signature shows that this page is as the key's holder signed it. It "
    "does not show who wrote the answers, that the name is the learner's, or whose key it is: ask the school for its "
    "key."
)
_FOOTER = "Distributed training, proved. Days of the exercises are by the learner's own record."


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
    body = _body(record, "A learner's claim to have completed the course", _CLAIM, {})
    return body + f"<!-- course claim sha256 {hashlib.sha256(body).hexdigest()} -->\n".encode()


def confirmed_body(record: Record, key: str, day: str) -> bytes:
    """What an instructor signs: `signed_page` adds the signature.

    record  without answers
    """
    facts = {"Answers run again, and signed, on": day, "Class key": key}
    return _body(record, "Has completed the course", _CONFIRMED, facts)


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
    if kind == "claim" and not _same(proof, hashlib.sha256(body).hexdigest()):
        raise Refused("the claim was changed after it was made: its SHA-256 differs; ask for the file as it was made")
    if not _same(digest, record.digest):
        raise Refused("the record was changed: its digest is not that of the name, points and answers beside it")
    return Sealed(record, body, None if kind == "claim" else key, proof)


def _body(record: Record, claim: str, meaning: str, facts: dict[str, str]) -> bytes:
    rows = [(shown(one.exercise), f"{one.points} of {one.of}", shown(one.right_since)) for one in record.exercises]
    known = {
        "Points": f"{record.points} of {record.of}",
        "Made on": record.made_on,
        **facts,
        "Digest (SHA-256)": record.digest,
    }
    parts = [
        f"<p><strong>What this page proves.</strong> {shown(meaning)}</p>",
        f"<dl>{''.join(f'<dt>{shown(name)}</dt><dd>{shown(value)}</dd>' for name, value in known.items())}</dl>",
        table("Exercises", ("Exercise", "Points", "Right since"), rows),
        # Escaped, so that no name or answer can end the element.
        '<details><summary>The record, for a program</summary><pre id="record" tabindex="0">'
        f"{html.escape(record.as_json())}</pre></details>",
    ]
    return page(record.name, claim, parts, _FOOTER).encode()


def _same(one: str, other: str) -> bool:
    """In constant time, so that an answer's delay reveals nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
