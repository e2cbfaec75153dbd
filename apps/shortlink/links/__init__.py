"""The pure domain: what a link is, how it may change, and what a visitor is answered.

Nothing here does input or output, reads a clock or draws randomness: the time (integer
milliseconds since the Unix epoch, UTC) and random bytes are arguments.
"""
