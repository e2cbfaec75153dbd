"""How each kind of component is asked whether it is well."""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

SECONDS = 5.0
"""How long an answer may take."""


def http(url: str, *, ca: Path | None = None) -> Callable[[], str | None]:
    """Well when `url` answers 200."""

    def ask() -> str | None:
        context = None if ca is None else ssl.create_default_context(cafile=ca)
        try:
            # Only our own http(s) addresses come here.
            with urllib.request.urlopen(url, timeout=SECONDS, context=context):  # noqa: S310
                return None
        except urllib.error.HTTPError as answer:
            with answer:
                return f"{url} answers {answer.code}"
        except (OSError, ssl.SSLError) as error:
            return f"{url}: {error}"

    return ask


def talks(address: str, port: int, says: bytes, hears: bytes) -> Callable[[], str | None]:
    """Well when the answer to the bytes `says` begins with `hears`."""

    def ask() -> str | None:
        try:
            with socket.create_connection((address, port), SECONDS) as connection:
                connection.sendall(says)
                heard = connection.recv(len(hears))
        except OSError as error:
            return f"{address}:{port}: {error}"
        return None if heard == hears else f"{address}:{port} answers {heard!r}"

    return ask
