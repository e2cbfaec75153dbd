"""Caches: what may be remembered of a link, for how long, and what replaces what."""
