"""API keys: random, known by their hash alone, in a file that only its user reads (W5, P1)."""

import json
import os
from pathlib import Path

import pytest

from shortlink.api.keys import (
    Key,
    Keys,
    KeysUnreadable,
    digest,
    new_key,
    read_keys,
    write_keys,
)
from shortlink.links.lifecycle import Actor

HEX = "0123456789abcdef" * 4


def test_a_key_is_256_random_bits_behind_its_prefix() -> None:
    asked: list[int] = []

    def entropy(n: int) -> bytes:
        asked.append(n)
        return b"\xfb\xff" * (n // 2)

    key = new_key(entropy)
    assert asked == [32]
    assert key == "sl_-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-_8"


def test_a_key_finds_its_owner_and_only_itself() -> None:
    keys = Keys([Key("ann", False, digest("sl_a")), Key("root", True, digest("sl_b"))])
    assert keys.actor("sl_a") == Actor("ann", admin=False)
    assert keys.actor("sl_b") == Actor("root", admin=True)
    for wrong in ("", "sl_", "sl_A", "sl_a ", digest("sl_a"), "\xff", "\x00"):
        assert keys.actor(wrong) is None


def test_a_written_file_is_read_back_and_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = new_key(os.urandom)
    write_keys(path, [])
    write_keys(path, [Key("ann", False, digest(key))])
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]
    assert read_keys(path).actor(key) == Actor("ann")
    assert read_keys(path).listed == (Key("ann", False, digest(key)),)


@pytest.mark.parametrize("owner", ["", "Ann", "a" * 64, "a b", "é", "ann\n", "a/b"])
def test_an_owner_that_cannot_be_one_is_not_written(tmp_path: Path, owner: str) -> None:
    with pytest.raises(ValueError, match="1 to 63"):
        write_keys(tmp_path / "keys.json", [Key(owner, False, HEX)])


def _one(**changes: object) -> str:
    return json.dumps({"keys": [{"owner": "ann", "admin": False, "sha256": HEX} | changes]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("\ud800", "Invalid JSON"),
        ("[]", "the file"),
        ("{}", "keys: Field required"),
        ('{"keys": {}}', "keys:"),
        ('{"keys": [], "more": 1}', "more: Extra"),
        ('{"keys": ["sl_x"]}', "keys.0:"),
        (_one(owner="Ann"), "keys.0.owner:"),
        (_one(owner=""), "keys.0.owner:"),
        (_one(owner="a" * 64), "keys.0.owner:"),
        (_one(owner="ann\n"), "keys.0.owner:"),
        (_one(admin="yes"), "keys.0.admin:"),
        (_one(admin=1), "keys.0.admin:"),
        (_one(admin=None), "keys.0.admin:"),
        (_one(sha256=HEX[1:]), "keys.0.sha256:"),
        (_one(sha256=HEX.upper()), "keys.0.sha256:"),
        (_one(key="sl_x"), "keys.0.key: Extra"),
        (
            json.dumps({"keys": json.loads(_one())["keys"] * 2}),
            "one key is listed twice",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(
    tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    path.chmod(0o600)
    with pytest.raises(KeysUnreadable) as refused:
        read_keys(path)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [_one(sha256="sl_secret"), _one(sl_secret=True), '{"keys": [], "sl_secret": {"admin": true}}'],
)
def test_a_key_put_in_place_of_its_hash_is_not_repeated(tmp_path: Path, content: str) -> None:
    """P1: the message may end up in a log."""
    path = tmp_path / "keys.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(KeysUnreadable) as refused:
        read_keys(path)
    assert "sl_secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    path.write_text(_one())
    path.chmod(mode)
    with pytest.raises(KeysUnreadable, match="chmod 600"):
        read_keys(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeysUnreadable, match="No such file"):
        read_keys(tmp_path / "none.json")
