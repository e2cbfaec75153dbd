"""The policy in force in a region, which its operator keeps in the store."""

from shortlink.links.policy import Policy
from shortlink.store.port import LinkStore, StoreUnsuitable
from shortlink.store.record import policy_from_text


async def kept_policy(store: LinkStore, region: str | None) -> Policy:
    """The policy kept for `region`; the default one where none is kept.

    Raises StoreError, of which StoreUnsuitable for a newer release's policy.
    """
    text = (await store.policies()).get(region or "")
    if text is None:
        return Policy()
    try:
        return policy_from_text(text)
    except ValueError as error:
        raise StoreUnsuitable(
            f"the policy in force in {region or 'this installation'} is of another release"
            f" ({error}); run that release here too"
        ) from error
