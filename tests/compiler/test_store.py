"""Compiled programs on disk: found again, refused where unsafe, and never needed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.fresh import said
from tests.models import array, digits, residual
from tinsmith.codegen import cache as code_cache
from tinsmith.codegen.cache import UNFINISHED, Cache, write_note
from tinsmith.compiler import store
from tinsmith.compiler.store import Store
from tinsmith.errors import FileNameError, ModelFileError, TinsmithError
from tinsmith.formats.container import Container, Draft, write_container

X = array(1, 1, 8, 8)

WARM = """
import sys, numpy as np, tinsmith as ts
net = ts.compile({path!r})
y = net(np.load({x!r}))
assert y.shape == (1, 10)
print(*sorted(m for m in sys.modules if m.split(".")[0] in ("tinsmith", "llvmlite", "onnx")))
"""

NEEDED = {
    "backends": "", "budget": "", "codegen": "cache host library recent sync_block workers",
    "compiler": "collector compile keeping kept model options sections source store", "errors": "",
    "extensions": "", "formats": "container mapped whole", "graph": "types", "hashing": "",
    "plain": "", "plan": "options plan shared_weights", "progress": "", "records": "",
    "registry": "", "version": "",
    "runtime": "forks inputs later memory net outputs program programs results session",
}  # fmt: skip
"""The rooms, and the modules in them, that a second start loads: each costs it a third of a
millisecond."""


def programs(folder: Path) -> list[Path]:
    return sorted((folder / "programs").glob("*.tin"))


def start(tmp_path: Path, model: Path) -> str:
    """What a new process has imported after it compiled and ran the model."""
    np.save(tmp_path / "x.npy", X)
    return said(WARM.format(path=str(model), x=str(tmp_path / "x.npy")))


def test_a_second_start_loads_no_more_than_it_needs(tmp_path: Path, cache: Path) -> None:
    assert "llvmlite" in start(tmp_path, digits()).split()
    assert len(programs(cache)) == 1
    known = {f"tinsmith.{room}" for room in NEEDED} | {"tinsmith"}
    known |= {f"tinsmith.{room}.{m}" for room, names in NEEDED.items() for m in names.split()}
    assert set(start(tmp_path, digits()).split()) - known == set()


def test_a_changed_model_is_compiled_anew(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(digits().read_bytes())
    first = ts.compile(model)(X)
    data = bytearray(model.read_bytes())
    graph = ts.load(digits())
    w = next(v.const for v in graph.constants() if v.const is not None and v.const.size > 100)
    at = bytes(data).index(np.ascontiguousarray(w).tobytes()[:64])
    data[at : at + 4] = np.float32(9).tobytes()
    times = model.stat()
    model.write_bytes(data)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not np.allclose(ts.compile(model)(X), first)


def test_changed_external_data_are_noticed(tmp_path: Path, cache: Path) -> None:
    import onnx

    model = tmp_path / "model.onnx"
    onnx.save(
        onnx.load(digits()), model, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    first = ts.compile(model)(X)
    np.testing.assert_array_equal(ts.compile(model)(X), first)
    data = bytearray((tmp_path / "w.bin").read_bytes())
    data[:400] = np.full(100, 0.5, np.float32).tobytes()
    (tmp_path / "w.bin").write_bytes(data)
    assert not np.allclose(ts.compile(model)(X), first)


def test_equal_models_in_two_folders_have_their_own_external_data(
    tmp_path: Path, cache: Path
) -> None:
    import onnx

    models = [tmp_path / name / "model.onnx" for name in "ab"]
    for i, model in enumerate(models):
        model.parent.mkdir()
        proto = onnx.load(digits())
        for w in proto.graph.initializer:
            if w.data_type == onnx.TensorProto.FLOAT:
                values = onnx.numpy_helper.to_array(w) * np.float32(1 - i / 2)
                w.CopyFrom(onnx.numpy_helper.from_array(values, w.name))
        onnx.save(proto, model, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert models[0].read_bytes() == models[1].read_bytes()
    want = [ts.compile(model, cache=False)(X) for model in models]
    assert not np.allclose(*want)
    for _ in range(2):
        for model, y in zip(models, want, strict=True):
            np.testing.assert_array_equal(ts.compile(model)(X), y)
    assert len(programs(cache)) == 2


@pytest.mark.parametrize("damage", ["truncate", "flip code", "flip index", "empty"])
def test_a_damaged_entry_counts_as_absent(cache: Path, damage: str) -> None:
    want = ts.compile(digits())(X)
    (entry,) = programs(cache)
    data = bytearray(entry.read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "empty":
        data = bytearray()
    else:
        at = 30 if damage == "flip index" else bytes(data).index(b"\x7fELF") + 4096
        data[at] ^= 0xFF
    entry.write_bytes(data)
    np.testing.assert_array_equal(ts.compile(digits())(X), want)


def test_a_cache_that_others_may_write_to_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write"):
        net = ts.compile(digits())
        assert net(X).shape == (1, 10)
    assert not (cache / "programs").exists()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to give a folder away"
)
def test_a_cache_of_another_user_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    os.chown(cache, 12345, 12345)
    with pytest.warns(UserWarning, match="another user"):
        assert ts.compile(digits())(X).shape == (1, 10)


def test_a_cache_that_is_a_file_is_refused(cache: Path) -> None:
    cache.write_text("not a folder")
    with pytest.warns(UserWarning, match="cannot be used|not a directory"):
        assert ts.compile(digits())(X).shape == (1, 10)


def test_weights_are_mapped_from_the_program_that_is_kept(cache: Path) -> None:
    net = ts.compile(digits())
    net(X)
    (file,) = programs(cache)
    mapped = Path("/proc/self/maps").read_text() if sys.platform == "linux" else str(file)
    assert str(file) in mapped
    file.unlink()
    assert net(X).shape == (1, 10)


@pytest.mark.parametrize("hours, told", [(1, False), (25, True)])
def test_notes_tell_the_day_of_their_last_use(
    cache: Path, monkeypatch: pytest.MonkeyPatch, hours: int, told: bool
) -> None:
    """Else those of the models that are used most, written first, would be dropped first."""
    monkeypatch.setattr(store, "RECENT", 0.0)
    ts.compile(digits())
    notes = [f for f in (cache / "programs").iterdir() if f.suffix in (".json", ".digest")]
    written = time.time() - 3600 * hours
    for note in notes:
        os.utime(note, (written, written))
    ts.compile(digits())
    assert {note.suffix for note in notes} == {".json", ".digest"}
    assert all((note.stat().st_mtime > written + 60) == told for note in notes)


@pytest.mark.parametrize("when", ["__init__", "put", "finish", "commit"])
def test_a_full_disk_only_loses_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    import tinsmith.compiler.store as store

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_container", full)
    monkeypatch.setattr(store.Draft, when, full)
    code_cache._FULL.clear()
    with pytest.warns(UserWarning, match="cannot be written: No space left on device") as told:
        assert ts.compile(digits())(X).shape == (1, 10)
        assert ts.compile(digits())(X).shape == (1, 10)
    assert len(told) == 1
    assert not programs(cache)
    assert not [f for f in (cache / "programs").iterdir() if f.name.startswith(".")]


def test_a_cache_that_is_deleted_is_made_anew(cache: Path) -> None:
    net = ts.compile(digits())
    net(X)
    for _ in range(2):
        shutil.rmtree(cache)
        ts.compile(digits())(X)
        assert programs(cache) and list(cache.glob("*.so"))
        assert cache.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(cache / "programs")
    net(np.concatenate([X, X]))
    assert (cache / "programs").is_dir()


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="this system does not tell of holes")
def test_mapped_weights_have_no_holes(cache: Path) -> None:
    """On a full disk in memory, reading a hole through a mapping ends the process."""
    ts.compile(digits())(X)
    (file,) = programs(cache)
    offset, length, _ = Container(file).index["sections"]["weights"]
    with file.open("rb") as opened:
        assert os.lseek(opened.fileno(), offset, os.SEEK_HOLE) >= offset + length


def test_programs_of_a_read_only_disk_are_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = ts.compile(digits())(X)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    net = ts.compile(digits())
    np.testing.assert_array_equal(net(X), want)
    assert net.program((X.shape,)).stored


def test_a_relative_cache_stays_where_it_was(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of another folder of that name must not run: nobody has looked whose it is."""
    (tmp_path / "elsewhere" / "cache").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINSMITH_CACHE", "cache")
    code_cache._open.cache_clear()
    want = ts.compile(digits())(X)
    monkeypatch.chdir("elsewhere")
    net = ts.compile(digits())
    np.testing.assert_array_equal(net(X), want)
    assert net.program((X.shape,)).stored
    assert len(programs(cache)) == 1 and not list(Path("cache").iterdir())


def test_forced_kernels_are_those_of_the_compilation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the moment when another shape comes: its program is kept without them."""
    ts.compile(digits())(X)
    net = ts.compile(digits())
    monkeypatch.setenv("TINSMITH_KERNELS", "reference")
    net(np.concatenate([X, X]))
    assert {row.kernel for row in net.profile(np.concatenate([X, X]), repeat=1).rows} != {
        "reference"
    }
    forced = ts.compile(digits())
    assert {row.kernel for row in forced.profile(X, repeat=1).rows} == {"reference"}


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files")
def test_too_many_open_files_drop_no_programs(cache: Path) -> None:
    """A program that is kept needs one, and stays where there is none left."""
    import resource

    want = ts.compile(digits())(X)
    before = len(os.listdir("/proc/self/fd"))
    nets = [ts.compile(digits()) for _ in range(4)]
    np.testing.assert_array_equal(nets[-1](X), want)
    for net in nets:
        net(X)
    assert len(os.listdir("/proc/self/fd")) <= before + len(nets)
    kept = programs(cache)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    net = ts.compile(digits())
    os.close(free := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
    try:
        with pytest.raises(TinsmithError, match="Too many open files"):
            net(X)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert programs(cache) == kept
    assert ts.compile(digits()).program((X.shape,)).stored


def test_cache_off_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", "off")
    code_cache._open.cache_clear()
    assert ts.compile(digits())(X).shape == (1, 10)


# ---- .tin files


def test_a_tin_file_keeps_the_graph(tmp_path: Path, cache: Path) -> None:
    net = ts.compile(digits())
    ts.save(net, tmp_path / "digits.tin")
    graph = ts.load(tmp_path / "digits.tin")
    assert [v.name for v in graph.inputs] == ["image"]
    np.testing.assert_array_equal(ts.compile(tmp_path / "digits.tin")(X), net(X))


def test_a_folder_in_place_of_an_entry_is_survived(cache: Path) -> None:
    want = ts.compile(digits())(X)
    (entry,) = programs(cache)
    entry.unlink()
    entry.mkdir()
    np.testing.assert_array_equal(ts.compile(digits())(X), want)


def test_a_home_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", "~nobody-of-that-name/cache")
    code_cache._open.cache_clear()
    with pytest.warns(UserWarning, match="cannot be used"):
        assert ts.compile(digits())(X).shape == (1, 10)


@pytest.mark.parametrize("damage", ["half", "index", "code", "text", "table"])
def test_damaged_tin_files_are_named(tmp_path: Path, damage: str) -> None:
    net = ts.compile(residual(), cache=False)
    file = tmp_path / "net.tin"
    ts.save(net, file, code=True)
    data = bytearray(file.read_bytes())
    marks = {
        "index": b'"version"',
        "code": b"\x7fELF",
        "text": b"graph residual",
        "table": b'{"table"',
    }
    if damage == "half":
        data = data[: len(data) // 3]
    else:
        at = bytes(data).index(marks[damage]) + (5000 if damage == "code" else 3)
        data[at] ^= 0x5A
    file.write_bytes(data)
    with pytest.raises(ModelFileError):
        ts.compile(file, cache=False, trust=True)(array(1, 3, 12, 12))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be written"):
        ts.save(ts.load(digits()), tmp_path / "no" / "folder" / "x.tin")


@pytest.mark.parametrize("name", ["x.onnx", "x"])
def test_a_model_is_saved_under_no_other_format_s_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNameError, match=r"name the file 'x\.tin'"):
        ts.save(ts.load(digits()), tmp_path / name)
    assert not list(tmp_path.iterdir())
    ts.save(ts.load(digits()), tmp_path / "x.TIN")


def test_a_program_too_large_to_be_kept_says_what_would_keep_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LIMIT_FACTOR", 1 / 16384)
    net = ts.compile(digits())
    net(X)
    (note,) = [n for n in net.notes if "is not kept on disk" in n]
    assert not programs(cache)
    size = re.search(r"TINSMITH_CACHE_SIZE=(\d+)M", note)
    assert size is not None
    assert re.search(r"takes (?!0\.0)\d+\.\d MiB", note)
    monkeypatch.setenv("TINSMITH_CACHE_SIZE", f"{size[1]}M")
    code_cache._open.cache_clear()
    net = ts.compile(digits())
    net(X)
    assert not net.notes and len(programs(cache)) == 1


def test_what_a_killed_process_has_left_unfinished_goes(tmp_path: Path) -> None:
    """Of the programs, their notes and the code; but not what may still be written."""
    cache = Cache(tmp_path, 1 << 20)
    made = Store(cache)
    folder = tmp_path / "programs"
    left = [folder / ".key-tail.tin.123.0a1b2c3d", folder / ".key.json.9.00000000"]
    left.append(tmp_path / ".a.so.123.0a1b2c3d")
    young = [folder / ".key-tail.tin.124.0a1b2c3d", tmp_path / ".b.so.124.0a1b2c3d"]
    others = [folder / "key.json", folder / "key-tail.tin", folder / ".hidden", cache.file("a")]
    for file in (*left, *young, *others):
        file.write_bytes(b"x")
    for file in (*left, *others):
        os.utime(file, (0, 0))
    made._trim()
    cache.trim()
    assert not [f for f in left if f.exists()]
    assert all(f.exists() for f in (*young, *others))


def test_names_of_unfinished_files_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a process is killed between writing and renaming."""

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    monkeypatch.setattr("os.replace", killed)
    monkeypatch.setattr(Path, "unlink", killed)
    for write in (
        lambda: Cache(tmp_path).put("a", b"code"),
        lambda: write_note(tmp_path / "key.json", "text"),
        lambda: write_container(tmp_path / "key-tail.tin", {"a": b"b"}),
        lambda: Draft(tmp_path / "key-two.tin", "a"),
    ):
        with contextlib.suppress(SystemExit):
            write()
    names = [f.name for f in tmp_path.iterdir()]
    assert len(names) == 4 and all(re.fullmatch(UNFINISHED, n) for n in names), names
