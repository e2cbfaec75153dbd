"""Generated codes where the store may not answer yet when a process starts."""

from collections.abc import Collection

from shortlink.links.codes import SLOT_KEY_BYTES, Entropy, RandomCodes, SlotMap
from shortlink.store.port import LinkStore, StoreUnavailable


class StoredCodes:
    """Draws codes in this region's slots, once `learn` has heard from `store` which they are."""

    def __init__(self, store: LinkStore, entropy: Entropy) -> None:
        self._store = store
        self._entropy = entropy
        self._known: tuple[bytes, Collection[int]] | None = None
        self._codes: RandomCodes | None = None

    async def learn(self) -> None:
        """Ask which slots are this region's. Raises StoreError; what was known stays."""
        key = await self._store.install(self._entropy(SLOT_KEY_BYTES))
        slots = frozenset(await self._store.slots())
        if not slots:
            raise StoreUnavailable("this region owns no code slots yet: run `shortlink prepare`")
        if self._known != (key, slots):
            self._known = key, slots
            self._codes = RandomCodes(SlotMap(key), slots, self._entropy)

    def draw(self) -> str:
        """A code, as RandomCodes draws it. Raises StoreUnavailable as long as slots are unknown."""
        if self._codes is None:
            raise StoreUnavailable(
                "this region's code slots are not known yet; custom aliases go on"
            )
        return self._codes.draw()
