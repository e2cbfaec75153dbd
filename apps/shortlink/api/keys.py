"""API keys (W5, P1): who may call, known by the SHA-256 of a random key and by nothing else."""

import hashlib
import json
import os
import re
import stat
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlink.links.lifecycle import Actor

PREFIX: Final = "sl_"
"""Begins every key, so that people and secret scanners know one when they see it."""

_KEY_BYTES: Final = 32
_OWNER: Final = r"^[a-z0-9-]{1,63}$"


class KeysUnreadable(Exception):
    """The file of keys can't be used; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Key:
    """One caller: 1 to 63 of a-z, 0-9 and hyphen; `sha256` is the digest of the key, in hex."""

    owner: str
    admin: bool
    sha256: str


class Keys:
    """The known keys. A key is found by its digest, so no comparison's time tells about it."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.listed = tuple(keys)
        self._actors = {key.sha256: Actor(key.owner, key.admin) for key in keys}

    def actor(self, key: str) -> Actor | None:
        """Whose `key` it is, or None."""
        return self._actors.get(digest(key))


def new_key(entropy: Callable[[int], bytes]) -> str:
    """A key of 256 bits. `entropy(n)` gives n bytes from a cryptographically secure generator."""
    return PREFIX + urlsafe_b64encode(entropy(_KEY_BYTES)).rstrip(b"=").decode()


def digest(key: str) -> str:
    """The form in which a key is kept. Plain SHA-256 will do: nobody can guess 256 bits."""
    return hashlib.sha256(key.encode()).hexdigest()


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    owner: str = Field(pattern=_OWNER)
    admin: bool
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[_Entry]


def read_keys(path: Path) -> Keys:
    """The keys in the JSON file at `path`. Raises KeysUnreadable, without any of its content."""
    try:
        mode = path.stat().st_mode
        raw = path.read_bytes()
    except OSError as error:
        raise KeysUnreadable(f"{path} can't be read: {error.strerror}") from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise KeysUnreadable(
            f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}"
        )
    try:
        file = _File.model_validate_json(raw)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        # A name that doesn't look like one of a field may be a key.
        parts = [str(part) for part in wrong["loc"]]
        named = (part if re.fullmatch("[a-z0-9]{1,12}", part) else "(a name)" for part in parts)
        where = ".".join(named) or "the file"
        raise KeysUnreadable(
            f"{path}: {where}: {wrong['msg']}; a key is an owner, admin (true or false),"
            " and the sha256 of the key in hex"
        ) from None
    digests = [entry.sha256 for entry in file.keys]
    if len(set(digests)) < len(digests):
        raise KeysUnreadable(f"{path}: one key is listed twice; remove one of its entries")
    return Keys([Key(entry.owner, entry.admin, entry.sha256) for entry in file.keys])


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Write the file that `read_keys` reads, whole or not at all, for this user only.

    Raises OSError, and ValueError for an owner that can't be one.
    """
    for key in keys:
        if not re.fullmatch(_OWNER, key.owner):
            raise ValueError(f"owner {key.owner[:70]!r} must be 1 to 63 of a-z, 0-9 and hyphen")
    whole = path.with_name(f".{path.name}.new")
    whole.unlink(missing_ok=True)
    with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"keys": [asdict(key) for key in keys]}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)
