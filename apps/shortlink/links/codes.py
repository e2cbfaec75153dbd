"""Generated codes: seven characters of base 62 (G1), drawn at random (G2) within slots.

The code space is split in 64 equal slots by a keyed bijection (62^7 divides by 64); each
region owns some, so that two regions never try the same generated code.
"""

from collections.abc import Callable, Collection
from hashlib import blake2b

from shortlink.links.names import is_reserved

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LENGTH = 7
SPACE = 62**LENGTH
SLOTS = 64
SLOT_KEY_BYTES = 16

_HALF = 21  # two halves of 21 bits: 2^42 is the smallest even power of two above 62^7
_MASK = (1 << _HALF) - 1
_ROUNDS = 8  # as FF3 has (NIST SP 800-38G); the map has to be well mixed, not secret

Entropy = Callable[[int], bytes]
"""n -> n bytes from a cryptographically secure generator."""


def encode(number: int) -> str:
    """The code of `number`, 0 <= number < 62^7, most significant character first."""
    characters = []
    for _ in range(LENGTH):
        number, digit = divmod(number, 62)
        characters.append(ALPHABET[digit])
    return "".join(reversed(characters))


def decode(code: str) -> int:
    """The number of a seven-character code. Raises ValueError for any other text."""
    if len(code) != LENGTH:
        raise ValueError(f"{code!r} is not {LENGTH} characters")
    number = 0
    for character in code:
        number = number * 62 + ALPHABET.index(character)
    return number


class SlotMap:
    """The fixed keyed map of codes to slots. `key` is 16 bytes, written once at install."""

    def __init__(self, key: bytes) -> None:
        if len(key) != SLOT_KEY_BYTES:
            raise ValueError(f"a slot key has {SLOT_KEY_BYTES} bytes, not {len(key)}")
        self._hashes = [
            blake2b(key=key, salt=bytes([round_]), digest_size=4) for round_ in range(_ROUNDS)
        ]

    def slot(self, code: str) -> int:
        """The slot, 0 to 63, in which a seven-character code lies."""
        number = self._permuted(decode(code))
        while number >= SPACE:  # cycle-walking keeps it a bijection of [0, 62^7)
            number = self._permuted(number)
        return number % SLOTS

    def _permuted(self, number: int) -> int:
        left, right = number >> _HALF, number & _MASK
        for keyed in self._hashes:
            mixed = keyed.copy()
            mixed.update(right.to_bytes(3, "big"))
            left, right = right, left ^ (int.from_bytes(mixed.digest(), "big") & _MASK)
        return left << _HALF | right


class RandomCodes:
    """Strategy `random` (G2): uniform over the owned slots, without modulo bias."""

    def __init__(self, slots: SlotMap, owned: Collection[int], entropy: Entropy) -> None:
        if not owned or not set(owned) <= set(range(SLOTS)):
            raise ValueError(f"own at least one slot, each of 0 to {SLOTS - 1}: {sorted(owned)}")
        self._slots = slots
        self._owned = frozenset(owned)
        self._entropy = entropy

    def draw(self) -> str:
        """A code that nobody could guess. It may be taken: the store's answer decides."""
        limit = 2**64 - 2**64 % SPACE
        while True:
            number = int.from_bytes(self._entropy(8), "big")
            if number >= limit:
                continue
            code = encode(number % SPACE)
            if self._slots.slot(code) in self._owned and not is_reserved(code):
                return code
