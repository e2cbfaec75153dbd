"""The local platform's one API key: an administrator's."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from local.regions.pki import write_private
from shortlink.api.keys import Key, digest, new_key

OWNER = "local"


def hashed(folder: Path) -> str:
    """The file of hashed keys for the services; the key is made in `folder` at the first call."""
    path = folder / "api-key"
    if not path.exists():
        write_private(path, new_key(os.urandom) + "\n")
    key = Key(OWNER, True, digest(path.read_text().strip()))
    return json.dumps({"keys": [asdict(key)]}, indent=1)
