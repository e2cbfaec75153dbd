"""A folder of manifests: what editors, tools and mistakes do to it, and what is held (T2)."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shortlink_operator import folder as folder_module
from shortlink_operator.folder import MAX_FILE, ManifestFolder, Scan
from shortlink_operator.kinds import parse_manifest

URL = "https://example.com/"


def manifest(name: str, target: str = URL, **spec: object) -> str:
    return json.dumps(
        {
            "apiVersion": "shortlink.platform/v1alpha1",
            "kind": "ShortLink",
            "metadata": {"name": name},
            "spec": {"target": target, **spec},
        }
    )


def keys(*names: str) -> set[str]:
    return {f"default/{name}" for name in names}


def held(scan: Scan) -> set[str] | None:
    """The keys that may not be deleted although they are no objects; None is: no key may."""
    if any(one.keys is None for one in scan.unreadable):
        return None
    return {key for one in scan.unreadable for key in one.keys or ()}


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    return ManifestFolder(tmp_path)


def test_files_are_found_in_all_folders_but_hidden_and_linked_ones(
    folder: ManifestFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "x.yaml").write_text(manifest("elsewhere"))
    seen = ["a.yaml", "b.yml", "c.json", "D.YAML", "sub/sub/e.yaml", "ü.yaml"]
    unseen = [
        ".hidden.yaml", ".git/f.yaml", "sub/.f.yaml.swp", "f.yaml~", "#f.yaml#", "~f.yaml",
        "f.yaml.bak", "f.txt", "f", "4913", "f.yaml.tmp",
    ]  # fmt: skip
    for number, name in enumerate(seen + unseen):
        path = folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(manifest(f"n{number}"))
    (folder.path / "linked").symlink_to(elsewhere)
    (folder.path / "file.yaml").symlink_to(elsewhere / "x.yaml")
    scan = folder.scan()
    assert scan.objects.keys() == keys(*(f"n{n}" for n in range(len(seen))), "elsewhere")
    assert (scan.unreadable, scan.notes, scan.missing) == ((), (), False)


def test_a_mounted_config_map_is_read(folder: ManifestFolder) -> None:
    """Its files are links into a hidden folder that is itself a link, swapped at once."""
    for version in ("..1", "..2"):
        (folder.path / version).mkdir()
        (folder.path / version / "a.yaml").write_text(manifest("a", f"{URL}{version[2:]}"))
    (folder.path / "..data").symlink_to("..1")
    (folder.path / "a.yaml").symlink_to("..data/a.yaml")
    assert folder.scan().objects["default/a"].target == f"{URL}1"
    (folder.path / "..new").symlink_to("..2")
    (folder.path / "..new").replace(folder.path / "..data")
    assert folder.scan().objects["default/a"].target == f"{URL}2"


def test_documents_and_lists_are_told_apart(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(
        f"---\n{manifest('a')}\n---\n# nothing\n---\n{manifest('b')}\n...\n"
    )
    items = [json.loads(manifest("c")), json.loads(manifest("d")), {"kind": 3}]
    (folder.path / "b.json").write_text(
        "\ufeff" + json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    (folder.path / "c.yaml").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    scan = folder.scan()
    assert scan.objects.keys() == keys("a", "b", "c", "d")
    assert [one.where for one in scan.unreadable] == ["b.json, item 3"]


def test_objects_for_others_are_noted_and_hold_nothing(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n---\n{manifest('a')}\n"
    )
    scan = folder.scan()
    assert scan.objects.keys() == keys("a")
    assert scan.notes == (
        "a.yaml, document 1: kind 'ConfigMap' is not for this platform; passed over",
    )
    assert held(scan) == set()


BAD_FILES = [
    ("", "is empty; to delete its links, delete the file"),
    (" \n\n", "is empty"),
    ("# all gone\n", "is empty"),
    ("---\n---\n", "is empty"),
    ("null\n", "is empty"),
    ("\ufeff", "is empty"),
    ("a: [", "line 2, column 1"),
    ("spec:\n\ttarget: x\n", "line 2, column 1"),
    ("a: 'b", "unexpected end of stream"),
    ("a: b: c\n", "mapping values are not allowed"),
    ("a: \x07\n", "control characters are not allowed"),
    ("a: 1\na: 2\n", "line 1, column 1: 'a' comes 2 times in one mapping"),
    ("a: {b: {c: 1, c: 1}}\n", "'c' comes 2 times"),
    ("a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
    ("a: !!int x\n", "invalid literal for int()"),
    ("a: !!float x\n", "could not convert"),
    ("a: !!timestamp x\n", "is not readable YAML"),
    ("a: " + "9" * 5000, "is not readable YAML"),
    ("? [a]\n: b\n", "unhashable key"),
    ("a: *b\n", "undefined alias"),
    ("[" * 100_000, "exceeded maximum nesting depth"),
    ("[" * 900 + "]" * 900, "is a list, not an object"),
    ("a: &a [*a]\n", "has no apiVersion and no kind"),
    ("a: &a [x, x]\nb: [" + "*a, " * 21 + "]\n", "has more than 20 YAML aliases"),
    ("apiVersion: v1\nkind: List\nitems: {}\n", "is a List without a list of items"),
    ("apiVersion: v1\nkind: List\nitems:\n", "is a List without a list of items"),
    ("apiVersion: v1\nkind: List\n", "is a List without a list of items"),
    ("x" * (MAX_FILE + 1), f"is over {MAX_FILE} bytes"),
]


@pytest.mark.parametrize(("text", "says"), BAD_FILES)
def test_a_bad_file_is_told_of_and_may_hold_any_key(
    folder: ManifestFolder, text: str, says: str
) -> None:
    (folder.path / "a.yaml").write_text(text)
    (folder.path / "b.yaml").write_text(manifest("good"))
    scan = folder.scan()
    assert scan.objects.keys() == keys("good")
    assert [one.where for one in scan.unreadable] == ["a.yaml"]
    assert says in scan.unreadable[0].message
    assert held(scan) is None


def test_a_list_within_a_list_is_not_followed(folder: ManifestFolder) -> None:
    """It may have itself in it."""
    endless = "&a {apiVersion: v1, kind: List, items: [*a]}"
    (folder.path / "a.yaml").write_text(f"apiVersion: v1\nkind: List\nitems: [{endless}]\n")
    (one,) = folder.scan().unreadable
    assert (one.where, one.keys) == ("a.yaml, item 1", None)
    assert one.message == "is a List within a List; list its items instead"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("{", "line 1 column 2"),
        ("{} {}", "Extra data"),
        ('{"a": 1, "a": 2}', "'a' comes 2 times"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ("[" * 100_000, "nested too deeply"),
        (manifest("a") + "\n---\n", "Extra data"),
    ],
)
def test_a_bad_json_file(folder: ManifestFolder, text: str, says: str) -> None:
    (folder.path / "a.json").write_text(text)
    scan = folder.scan()
    assert says in scan.unreadable[0].message
    assert held(scan) is None


@pytest.mark.parametrize("raw", ["é".encode("latin-1"), manifest("a").encode("utf-16"), b"\xff"])
def test_a_file_that_is_not_utf_8(folder: ManifestFolder, raw: bytes) -> None:
    (folder.path / "a.yaml").write_bytes(raw)
    assert "is not UTF-8 at byte 0" in folder.scan().unreadable[0].message


def test_a_name_that_is_not_utf_8_can_be_printed(folder: ManifestFolder) -> None:
    with open(os.fsencode(folder.path) + b"/\xff.yaml", "w") as file:
        file.write("{")
    (one,) = folder.scan().unreadable
    assert one.where == "\\udcff.yaml"


def test_one_bad_document_does_not_stop_the_others(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(
        "\n---\n".join(
            [manifest("a"), "a: 1\na: 1", manifest("b", takeBack=1), manifest("c"), "a: [", "x"]
        )
    )
    scan = folder.scan()
    assert scan.objects.keys() == keys("a", "c")
    assert [one.where for one in scan.unreadable] == [
        "a.yaml, document 2",
        "a.yaml, document 3",
        "a.yaml, document 5",
    ]


def test_one_key_twice_names_both_places_and_has_no_winner(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(f"{manifest('x', URL)}\n---\n{manifest('only')}\n")
    (folder.path / "b.yaml").write_text(manifest("x", f"{URL}b"))
    (folder.path / "c.yaml").write_text(manifest("x", takeBack=1))
    scan = folder.scan()
    assert scan.objects.keys() == keys("only")
    assert scan.unreadable[-1].where == "a.yaml, document 1 and b.yaml and c.yaml"
    assert scan.unreadable[-1].message == "each has the object default/x; keep one of them"
    assert held(scan) == keys("x")
    (folder.path / "a.yaml").unlink()
    (folder.path / "c.yaml").unlink()
    assert folder.scan().objects["default/x"].target == f"{URL}b"


def test_a_file_that_vanishes_takes_its_objects_along(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(manifest("a"))
    assert folder.scan().objects.keys() == keys("a")
    (folder.path / "a.yaml").unlink()
    assert folder.scan() == Scan({})


def test_a_folder_that_is_gone_is_not_an_empty_one(folder: ManifestFolder) -> None:
    (folder.path / "a.yaml").write_text(manifest("a"))
    folder.scan()
    shutil.rmtree(folder.path)
    assert folder.scan() == Scan({}, missing=True)
    folder.path.write_text("a file now")
    assert folder.scan().missing
    folder.path.unlink()
    folder.path.mkdir()
    assert folder.scan() == Scan({})


def test_an_editor_that_empties_before_it_writes_deletes_nothing(folder: ManifestFolder) -> None:
    path = folder.path / "a.yaml"
    whole = f"{manifest('a')}\n---\n{manifest('b')}\n"
    path.write_text(whole)
    folder.scan()
    for cut in (0, 1, 20, len(manifest("a")) - 1):
        path.write_text(whole[:cut])
        scan = folder.scan()
        assert scan.objects == {}
        assert held(scan) == keys("a", "b")
    path.write_text(whole)
    scan = folder.scan()
    assert scan.objects.keys() == keys("a", "b")
    assert held(scan) == set()


def test_an_editor_that_writes_aside_and_renames(folder: ManifestFolder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(manifest("a"))
    folder.scan()
    (folder.path / ".a.yaml.new").write_text(manifest("a", f"{URL}2"))
    assert folder.scan().objects["default/a"].target == URL
    (folder.path / ".a.yaml.new").replace(path)
    assert folder.scan().objects["default/a"].target == f"{URL}2"
    path.rename(folder.path / "b.yaml")
    scan = folder.scan()
    assert scan.objects["default/a"].target == f"{URL}2"
    assert scan.unreadable == ()


def test_a_name_cut_short_holds_what_the_file_had(folder: ManifestFolder) -> None:
    """`name: ho` parses, but it is no reason to delete `home`."""
    head = "apiVersion: shortlink.platform/v1alpha1\nkind: ShortLink\nmetadata:\n  name: home"
    path = folder.path / "a.yaml"
    path.write_text(f"{head}\nspec: {{target: '{URL}'}}\n")
    folder.scan()
    path.write_text(head[:-2])
    scan = folder.scan()
    assert scan.objects == {}
    assert held(scan) == keys("ho", "home")


def test_what_is_held_grows_until_the_file_is_whole_again(folder: ManifestFolder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(manifest("a"))
    folder.scan()
    path.write_text(f"{manifest('b')}\n---\n- broken\n")
    assert held(folder.scan()) == keys("a", "b")
    path.write_text("broken")
    assert held(folder.scan()) == keys("a", "b")
    path.write_text(manifest("c"))
    scan = folder.scan()
    assert scan.objects.keys() == keys("c")
    assert held(scan) == set()


def test_after_a_restart_a_broken_file_may_hold_any_key(folder: ManifestFolder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(manifest("a"))
    folder.scan()
    path.write_text("broken")
    assert held(folder.scan()) == keys("a")
    assert held(ManifestFolder(folder.path).scan()) is None
    path.write_text(manifest("a", takeBack=1))
    assert held(ManifestFolder(folder.path).scan()) == keys("a")


def test_files_that_cannot_be_opened(folder: ManifestFolder) -> None:
    os.mkfifo(folder.path / "fifo.yaml")
    (folder.path / "nowhere.yaml").symlink_to("none.yaml")
    (folder.path / "round.yaml").symlink_to("round.yaml")
    scan = folder.scan()
    assert {one.where: one.message.partition(";")[0] for one in scan.unreadable} == {
        "fifo.yaml": "can't be read (not a regular file)",
        "nowhere.yaml": "can't be read (No such file or directory)",
        "round.yaml": "can't be read (Too many levels of symbolic links)",
    }
    assert held(scan) is None


def test_a_file_that_may_no_longer_be_read_holds_its_keys(
    folder: ManifestFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.path / "a.yaml"
    path.write_text(manifest("a"))
    folder.scan()
    path.write_text(manifest("a", f"{URL}2"))

    def denied(*args: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(folder_module, "read_regular", denied)
        scan = folder.scan()
    assert scan.unreadable[0].message == "can't be read (Permission denied); mend or delete it"
    assert held(scan) == keys("a")
    assert folder.scan().objects["default/a"].target == f"{URL}2"


@pytest.mark.parametrize("shut", ["", "sub"])
def test_a_folder_that_may_no_longer_be_listed_keeps_its_files(
    folder: ManifestFolder, monkeypatch: pytest.MonkeyPatch, shut: str
) -> None:
    (folder.path / "sub").mkdir()
    (folder.path / "sub/a.yaml").write_text(manifest("a"))
    (folder.path / "subway.yaml").write_text(manifest("b"))
    before = folder.scan()
    scandir = os.scandir

    def denied(path: Any) -> Iterator[Any]:
        if Path(path) == folder.path / shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", denied)
        scan = folder.scan()
        fresh = ManifestFolder(folder.path).scan()
    assert scan.objects == before.objects
    assert "can't be listed (Permission denied)" in scan.unreadable[0].message
    assert held(scan) == (keys("a") if shut else keys("a", "b"))
    assert held(fresh) is None
    assert folder.scan() == before


def test_only_files_that_changed_are_read_again(
    folder: ManifestFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice after a change, for two writes within a tick of the disk's clock look like one."""
    reads: list[str] = []
    read = folder_module.read_regular

    def counted(path: str) -> Any:
        reads.append(os.path.basename(path))
        return read(path)

    monkeypatch.setattr(folder_module, "read_regular", counted)
    for name in ("a", "b"):
        (folder.path / f"{name}.yaml").write_text(manifest(name))
    for _ in range(5):
        folder.scan()
    assert sorted(reads) == ["a.yaml", "a.yaml", "b.yaml", "b.yaml"]
    reads.clear()
    (folder.path / "a.yaml").write_text(manifest("a", f"{URL}longer"))
    for _ in range(5):
        assert folder.scan().objects["default/a"].target == f"{URL}longer"
    assert reads == ["a.yaml", "a.yaml"]


def test_a_second_write_within_a_tick_of_the_clock_is_seen(folder: ManifestFolder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(manifest("a", f"{URL}1"))
    first = path.stat()
    folder.scan()
    path.write_text(manifest("a", f"{URL}2"))
    os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns))
    assert folder.scan().objects["default/a"].target == f"{URL}2"


@pytest.mark.parametrize("spelled", ["0x" + "f" * 5000, "0b" + "1" * 20_000, "9" * 5000])
@pytest.mark.parametrize("place", ["target", "redirectType", "metadata", "takeBack"])
def test_a_number_of_5000_digits_holds_only_its_own_file(
    folder: ManifestFolder, spelled: str, place: str
) -> None:
    """Python reads such a number in hex, but refuses to print it."""
    path = folder.path / "a.yaml"
    path.write_text(manifest("a"))
    (folder.path / "b.yaml").write_text(manifest("b"))
    folder.scan()
    head = "apiVersion: shortlink.platform/v1alpha1\nkind: ShortLink\nmetadata: {name: a}\n"
    path.write_text(f"{head}spec:\n  code: promo\n  {place}: {spelled}\n")
    scan = folder.scan()
    assert scan.objects.keys() == keys("b")
    assert held(scan) == keys("a")
    assert scan.unreadable[0].where == "a.yaml"
    assert len(scan.unreadable[0].message) < 500
    if spelled.startswith("0"):  # in decimal nothing of the document can be read
        assert held(ManifestFolder(folder.path).scan()) == keys("a")


@pytest.mark.parametrize("place", ["name", "kind", "apiVersion", "a name in the mapping"])
def test_a_number_of_5000_digits_in_what_says_whose_it_is_stops_no_other(
    folder: ManifestFolder, place: str
) -> None:
    number = "0x" + "f" * 5000
    lines = {"apiVersion": "shortlink.platform/v1alpha1", "kind": "ShortLink", "name": "a"}
    lines = {key: number if key == place else value for key, value in lines.items()}
    text = (
        f"apiVersion: {lines['apiVersion']}\nkind: {lines['kind']}\n"
        f"metadata: {{name: {lines['name']}}}\nspec: {{target: '{URL}', code: promo}}\n"
    )
    (folder.path / "a.yaml").write_text(text + (f"{number}: 1\n" if " " in place else ""))
    (folder.path / "b.yaml").write_text(manifest("b"))
    scan = folder.scan()
    assert scan.objects.keys() == keys("b")
    assert [one.where for one in scan.unreadable] == ["a.yaml"]


def test_what_goes_wrong_in_reading_one_file_in_an_unforeseen_way_holds_that_file_only(
    folder: ManifestFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (folder.path / f"{name}.yaml").write_text(manifest(name))
    folder.scan()

    def odd(document: Any, where: str) -> Any:
        if where == "a.yaml":
            raise AssertionError("odd")
        return parse_manifest(document, where)

    with monkeypatch.context() as patched:
        patched.setattr(folder_module, "parse_manifest", odd)
        with structlog.testing.capture_logs() as logs:
            scan = folder.scan()
        fresh = ManifestFolder(folder.path).scan()
    assert scan.objects.keys() == keys("b")
    assert [(one.where, one.message) for one in scan.unreadable] == [
        ("a.yaml", "can't be handled: AssertionError('odd')")
    ]
    assert held(scan) == keys("a")
    assert [line["where"] for line in logs] == ["a.yaml"]
    assert held(fresh) is None
    (folder.path / "a.yaml").write_text(manifest("a", f"{URL}2"))
    assert folder.scan().objects.keys() == keys("a", "b")


def test_a_pipe_is_not_waited_for_and_stops_no_other(folder: ManifestFolder) -> None:
    os.mkfifo(folder.path / "x.yaml")
    (folder.path / "b.yaml").write_text(manifest("b"))
    for _ in range(3):
        scan = folder.scan()
        assert scan.objects.keys() == keys("b")
        assert [one.where for one in scan.unreadable] == ["x.yaml"]
    (folder.path / "x.yaml").unlink()
    assert folder.scan().unreadable == ()


def test_names_that_differ_only_in_bytes_that_are_no_text_are_two_files(
    folder: ManifestFolder,
) -> None:
    for name in (b"\xfe", b"\xff"):
        with open(os.fsencode(folder.path) + b"/x" + name + b".yaml", "w") as file:
            file.write(manifest(f"n{name[0]}"))
    assert folder.scan().objects.keys() == keys("n254", "n255")
    os.unlink(os.fsencode(folder.path) + b"/x\xfe.yaml")
    assert folder.scan().objects.keys() == keys("n255")


def test_a_write_of_the_same_size_is_seen_though_its_time_was_put_back(
    folder: ManifestFolder,
) -> None:
    """As `cp -p` and `rsync -t` do; the time of the change can't be put back."""
    path = folder.path / "a.yaml"
    path.write_text(manifest("a", f"{URL}1"))
    first = path.stat()
    for _ in range(3):
        folder.scan()
    while True:  # until the disk's clock has ticked
        path.write_text(manifest("a", f"{URL}2"))
        os.utime(path, ns=(first.st_atime_ns, first.st_mtime_ns))
        second = path.stat()
        if second.st_ctime_ns != first.st_ctime_ns:
            break
    assert (second.st_mtime_ns, second.st_size, second.st_ino) == (
        first.st_mtime_ns,
        first.st_size,
        first.st_ino,
    )
    assert folder.scan().objects["default/a"].target == f"{URL}2"
