"""A folder of manifests as a source of objects: scanned, never trusted, never guessed at (T2).

Whatever can't be read holds the objects that it held, or may hold, so that a mistake in a
file deletes no link.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeGuard

import structlog

from shortlink_operator.documents import BadDocument, documents
from shortlink_operator.kinds import KIND, ShortLink, Unreadable, foreign, parse_manifest

log = structlog.get_logger()

MAX_FILE: Final = 1024 * 1024
"""Bytes of a manifest file."""

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_IGNORED: Final = (".", "~", "#")  # hidden files, and what editors leave for a moment

_Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Scan:
    """What a folder holds. `objects` by key; `notes` tell of what was passed over, and hold
    nothing; `missing`: the folder itself is not there.
    """

    objects: dict[str, ShortLink]
    unreadable: tuple[Unreadable, ...] = ()
    notes: tuple[str, ...] = ()
    missing: bool = False


@dataclass(slots=True)
class _File:
    """A file as last read: `places` of all keys in it, and `held`, the keys that it may hold
    (None: any, for it was never read whole). `confirmed`: a second look found it the same.
    """

    signature: _Signature | None = None
    confirmed: bool = False
    objects: list[ShortLink] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)
    held: frozenset[str] | None = None


class ManifestFolder:
    """The *.yaml, *.yml and *.json files under `path`; linked folders are not entered.

    It remembers, while the process lives, what each file held when it could last be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, _File] = {}

    def scan(self) -> Scan:
        """What is there now. Only files that changed are read; nothing is waited for."""
        if not os.path.isdir(self.path):
            return Scan({}, missing=True)
        files: dict[str, _File] = {}
        closed: list[Unreadable] = []
        for found in self._walk():
            if isinstance(found, str):
                files[found] = self._look(found, self._name(found))
            else:
                within = os.path.join(found.filename, "")
                inside = {
                    path: file for path, file in self._files.items() if path.startswith(within)
                }
                files |= inside
                closed.append(_closed(self._name(found.filename), found, inside.values()))
        self._files = files
        return _joined([files[path] for path in sorted(files)], closed)

    def _name(self, path: str) -> str:
        name = Path(path).relative_to(self.path).as_posix()
        return name.encode(errors="backslashreplace").decode()  # names may be any bytes

    def _walk(self) -> Iterator[str | OSError]:
        """Paths of manifest files, then what could not be entered."""
        errors: list[OSError] = []
        for folder, folders, names in os.walk(self.path, onerror=errors.append):
            folders[:] = [name for name in folders if not name.startswith(_IGNORED)]
            for name in names:
                if name.lower().endswith(_SUFFIXES) and not name.startswith(_IGNORED):
                    yield os.path.join(folder, name)
        yield from (error for error in errors if not isinstance(error, FileNotFoundError))

    def _look(self, path: str, name: str) -> _File:
        known = self._files.get(path)
        file = _File()
        try:
            status = os.stat(path)
            if known is not None and known.signature == _signature(status):
                # Written twice within a tick of the disk's clock, a file looks unchanged: so
                # what is new is read at two looks.
                if known.confirmed:
                    return known
                file.confirmed = True
            raw, file.signature = read_regular(path)
        except OSError as error:
            problem = error.strerror or str(error)
            file.unreadable.append(
                Unreadable(name, f"can't be read ({problem}); mend or delete it", None)
            )
        else:
            try:
                _parse(raw, name, file)
            except Exception as error:  # one file's oddity may not stop all others
                log.exception("manifest can't be handled", where=name)
                file.unreadable.append(Unreadable(name, f"can't be handled: {error!r}", None))
        _hold(file, None if known is None else known.held)
        return file


def _signature(status: os.stat_result) -> _Signature:
    # A copy may restore the time of the content, but not that of the change.
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def read_regular(path: str) -> tuple[bytes, _Signature | None]:
    """Up to MAX_FILE + 1 bytes; no signature if the file changed meanwhile.

    Raises OSError, also for what is no regular file; it waits for nobody.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        before = _signature(status)
        raw = file.read(MAX_FILE + 1)
        after = _signature(os.fstat(file.fileno()))
    return raw, before if before == after else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end


def _parse(raw: bytes, name: str, file: _File) -> None:
    def unreadable(message: str) -> None:
        file.unreadable.append(Unreadable(name, message, None))

    if len(raw) > MAX_FILE:
        return unreadable(f"is over {MAX_FILE} bytes; split it into smaller files")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return unreadable(f"is not UTF-8 at byte {error.start}; save it as UTF-8")
    found = list(documents(text, as_json=name.lower().endswith(".json")))
    if all(document is None for document in found):
        return unreadable("is empty; to delete its links, delete the file")
    for number, document in enumerate(found, 1):
        where = name if len(found) == 1 else f"{name}, document {number}"
        for place, item in _items(document, where):
            _sort(item, place, file)


def _items(document: object, where: str) -> Iterator[tuple[str, object]]:
    """A document, or what a List has in it; nothing for an empty one."""
    if document is None:
        return
    if not _is_list(document):
        yield where, document
        return
    items = document.get("items")
    if not isinstance(items, list):
        yield where, BadDocument("is a List without a list of items; correct or delete it")
        return
    for number, item in enumerate(items, 1):
        if _is_list(item):
            item = BadDocument("is a List within a List; list its items instead")
        yield f"{where}, item {number}", item


def _is_list(document: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(document, Mapping) and document.get("kind") in ("List", f"{KIND}List")


def _sort(document: object, where: str, file: _File) -> None:
    if isinstance(document, BadDocument):
        file.unreadable.append(Unreadable(where, document.message, None))
        return
    if kind := foreign(document):
        file.notes.append(f"{where}: kind {kind[:80]!r} is not for this platform; passed over")
        return
    read = parse_manifest(document, where)
    if isinstance(read, ShortLink):
        file.objects.append(read)
        file.places.append((read.key, where))
    else:
        file.unreadable.append(read)
        file.places += [(key, where) for key in read.keys or ()]


def _hold(file: _File, before: frozenset[str] | None) -> None:
    """Say what `file` may hold, which held `before` when it could last be told."""
    keys = frozenset(key for key, _ in file.places)
    if not file.unreadable:
        file.held = keys
    elif before is not None:
        # The key of a broken document may be broken too, so what was there is held as well.
        file.held = keys | before
    elif all(one.keys is not None for one in file.unreadable):
        file.held = keys
    if file.held is not None:
        file.unreadable = [replace(one, keys=file.held) for one in file.unreadable]


def _closed(folder: str, error: OSError, inside: Iterable[_File]) -> Unreadable:
    held = [file.held for file in inside]
    known = frozenset().union(*(keys for keys in held if keys is not None))
    return Unreadable(
        f"{folder}/",
        f"can't be listed ({error.strerror}); its links stay as they are until it can",
        known if held and None not in held else None,
    )


def _joined(files: list[_File], closed: list[Unreadable]) -> Scan:
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for key, where in file.places:
            places[key].append(where)
    twice = [
        Unreadable(
            " and ".join(where), f"each has the object {key}; keep one of them", frozenset({key})
        )
        for key, where in sorted(places.items())
        if len(where) > 1
    ]
    return Scan(
        {link.key: link for file in files for link in file.objects if len(places[link.key]) == 1},
        (*(one for file in files for one in file.unreadable), *closed, *twice),
        tuple(note for file in files for note in file.notes),
    )
