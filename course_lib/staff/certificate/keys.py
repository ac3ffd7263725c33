"""A class's Ed25519 key: the instructor signs with the one half, anybody checks with the other. Needs cryptography.

Nothing of a key ships with the course, and no learner is handed a secret.
"""

import base64
import contextlib
import hashlib
import os
from functools import partial
from pathlib import Path

from course_lib.errors import CourseError

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
except ImportError:
    raise CourseError("keys need the cryptography package: `pip install cryptography`") from None

PUBLIC = ".pub"
ID_CHARACTERS = 16  # of the public half's SHA-256; enough to tell keys apart, and no proof


def make(file: Path) -> Path:
    """Write a new private key, for its owner alone, and its public half beside it; return the latter's file.

    Raises  CourseError where the file is there already or cannot be written
    """
    private = ed25519.Ed25519PrivateKey.generate()
    public_file = file.with_name(file.name + PUBLIC)
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for path, content, mode in ((file, text, 0o600), (public_file, public, 0o644)):
        try:
            with open(path, "xb", opener=partial(os.open, mode=mode)) as made:
                made.write(content)
        except OSError as error:
            raise CourseError(f"the key {path} cannot be written ({error.strerror}); name a new file") from None
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
    """Whether the signature is this key's of this content; the package compares in constant time."""
    try:
        public.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(file: Path):
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CourseError(f"the key {file} cannot be read: {error.strerror}") from None
    for load in (partial(serialization.load_pem_private_key, password=None), serialization.load_pem_public_key):
        with contextlib.suppress(ValueError, TypeError):
            key = load(content)
            if isinstance(key, (ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey)):
                return key
    raise CourseError(f"{file} is no key of a class; `course verify --new-key FILE` makes one")
