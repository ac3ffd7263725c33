"""A class's Ed25519 key: the instructor signs with the one half, anybody checks with the other. Needs cryptography.

Nothing of a key ships with the course, and no learner is handed a secret.
"""

import base64
import contextlib
import hashlib
from functools import partial
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.staff.certificate.record import read_file, write_new

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
except ImportError:
    raise CourseError("keys need the cryptography package: `pip install cryptography`") from None

PUBLIC = ".pub"
LARGEST_BYTES = 10_000  # a key's file has a few hundred
ID_CHARACTERS = 16  # of the public half's SHA-256; enough to tell keys apart, and no proof


def make(file: Path) -> Path:
    """Write a new private key, for its owner alone, and its public half beside it; return the latter's file.

    Raises  CourseError where the file is there already or cannot be written
    """
    private = ed25519.Ed25519PrivateKey.generate()
    public_file = file.with_name(file.name + PUBLIC)
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_new(file, text, mode=0o600)
    write_new(public_file, public)
    return public_file


def read_private(file: Path):
    """The private key, to sign with. Raises CourseError for another file."""
    key = _read(file)
    if not hasattr(key, "sign"):
        raise CourseError(f"{file} holds the public half of a key, which signs nothing: name the file without {PUBLIC}")
    return key


def read_public(file: Path):
    """The public half, from either file. Raises CourseError for another file."""
    key = _read(file)
    return key.public_key() if hasattr(key, "sign") else key


def id_of(public) -> str:
    """A short name that distinguishes keys."""
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:ID_CHARACTERS]


def sign(private, content: bytes) -> str:
    """The signature as text."""
    return base64.b64encode(private.sign(content)).decode()


def is_signed(public, content: bytes, signature: str) -> bool:
    """Whether the signature is this key's of this content, in its one spelling."""
    try:
        proof = base64.b64decode(signature, validate=True)
        public.verify(proof, content)
    except (InvalidSignature, ValueError):
        return False
    return base64.b64encode(proof).decode() == signature  # the last letter has bits to spare


def _read(file: Path):
    content = read_file(file, LARGEST_BYTES)
    for load in (partial(serialization.load_pem_private_key, password=None), serialization.load_pem_public_key):
        with contextlib.suppress(ValueError, TypeError):
            key = load(content)
            if isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
                return key
    raise CourseError(f"{file} is no key of a class; `course verify --new-key FILE` makes one")
