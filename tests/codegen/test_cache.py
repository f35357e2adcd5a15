"""The code cache: what it keeps, what it refuses, and what it survives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.arrays import X, apply, texts
from tests.interrupts import strikes
from tinsmith.codegen import cache as module
from tinsmith.codegen import library
from tinsmith.codegen import math as m
from tinsmith.codegen.builder import Module
from tinsmith.codegen.cache import UNFINISHED, Cache, key_of, open_cache
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.library import Compiler, forget, load_library
from tinsmith.codegen.target import Target, host, level
from tinsmith.codegen.types import F32, PTR
from tinsmith.codegen.workers import Call
from tinsmith.errors import CacheError

not_root = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() == 0, reason="root may do all"
)


def compile_all(
    codes: dict[str, str], target: Target, cache: Cache | None = None
) -> dict[str, bytes]:
    """The object of each text, by symbol."""
    with Compiler(target, cache) as compiler:
        return compiler.objects(codes)


def test_while_somebody_waits_all_cores_compile_but_never_the_callers_thread(monkeypatch):
    threads = set()
    monkeypatch.setattr("tinsmith.codegen.library.usable_cores", lambda: 3)

    def slow(text: str, target: Target) -> bytes:
        threads.add(threading.get_ident())
        time.sleep(0.02)
        return compile_object(text, target)

    monkeypatch.setattr("tinsmith.codegen.jit.compile_object", slow)
    forget()
    assert len(compile_all(texts(6), host())) == 6
    assert threading.get_ident() not in threads
    assert len(threads) > 2


def test_what_was_known_once_is_not_compiled_though_it_is_forgotten_meanwhile(monkeypatch):
    codes = texts(1)
    want = compile_all(codes, host())
    monkeypatch.setattr("tinsmith.codegen.jit.compile_object", lambda *_: pytest.fail("compiled"))
    with Compiler(host()) as compiler:
        compiler.add(codes["f0"])
        forget()
        assert compiler.objects(codes) == want


def test_objects_are_made_after_an_interrupt_too(monkeypatch):
    codes, go, cancel = texts(3), threading.Event(), Call.cancel

    def interrupted(call: Call[bytes]) -> bool:
        monkeypatch.setattr(Call, "cancel", cancel)
        assert cancel(call)
        raise KeyboardInterrupt

    monkeypatch.setattr("tinsmith.codegen.library.usable_cores", lambda: 1)
    forget()
    with Compiler(host()) as compiler:
        compiler._pools[0].submit(go.wait)  # so that nothing has begun
        for text in codes.values():
            compiler.add(text)
        monkeypatch.setattr(Call, "cancel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.objects(codes)
        go.set()
        assert list(compiler.objects(codes)) == list(codes)


def test_an_interrupt_at_any_moment_leaves_the_time_slices_of_threads_as_they_were(monkeypatch):
    codes, before, seen = texts(1), sys.getswitchinterval(), set()

    def noted(*_: object) -> bytes:
        seen.add(sys.getswitchinterval())
        return b"object"

    monkeypatch.setattr("tinsmith.codegen.jit.compile_object", noted)
    for moment in strikes(lambda: compile_all(codes, host())):
        forget()
        end = time.monotonic() + 5
        while sys.getswitchinterval() != before:
            assert time.monotonic() < end, moment
            time.sleep(0.001)
    forget()
    assert len(seen) == 1 and seen.pop() < before


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path / "code")


def test_entries(cache):
    assert cache.get("a") is None
    assert cache.put("a", b"one")
    assert cache.put("b", b"")
    assert (cache.get("a"), cache.get("b")) == (b"one", b"")
    assert cache.put("a", b"two")
    assert cache.get("a") == b"two"
    assert [f.stat().st_size for f in sorted(cache.path.iterdir())] == [40 + 3, 40]


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "swap"])
def test_damaged_entries_are_removed(cache, damage):
    cache.put("a", b"some code")
    cache.put("b", b"other code")
    file = cache.file("a")
    data = file.read_bytes()
    changed = {
        "flip": bytes([data[0] ^ 1]) + data[1:],
        "cut": data[:-5],
        "grow": data + b"x",
        "empty": b"",
        "swap": cache.file("b").read_bytes(),
    }
    file.write_bytes(changed[damage])
    assert cache.get("a") is None
    assert not file.exists()


def test_made_private(cache):
    assert cache.path.stat().st_mode & 0o777 == 0o700
    cache.put("a", b"x")
    assert cache.file("a").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_others_may_not_write(tmp_path, mode):
    (tmp_path / "code").mkdir()
    (tmp_path / "code").chmod(mode)
    with pytest.raises(CacheError, match="chmod go-w"):
        Cache(tmp_path / "code")


def test_others_may_read(tmp_path):
    (tmp_path / "code").mkdir(mode=0o755)
    assert Cache(tmp_path / "code").put("a", b"x")


def test_another_owner(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(CacheError, match="another user"):
        Cache(tmp_path / "code")


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "code").write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        Cache(tmp_path / "code")
    with pytest.raises(CacheError, match="cannot be used"):
        Cache(tmp_path / "code" / "below")


def test_a_disk_that_takes_nothing(cache, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not cache.put("a", b"x")
    assert not list(cache.path.iterdir())
    library = load_library(texts(1), host(), cache)
    np.testing.assert_allclose(apply(library, "f0", X), np.exp(X), rtol=1e-6)


def test_the_bound(tmp_path):
    cache = Cache(tmp_path / "code", limit=1_000_000)
    now = time.time()
    for k in range(30):
        cache.put(f"k{k}", bytes(1000))
        os.utime(cache.file(f"k{k}"), (now + k, now + k))
    cache.limit = 10_000
    cache.trim()
    assert len(list(cache.path.iterdir())) == 9
    assert cache.get("k29") is not None
    assert cache.get("k0") is None


@pytest.mark.parametrize(
    "text, size",
    [("", 512 << 20), ("4096", 4096), ("2K", 2048), ("1.5m", 3 << 19), ("1GB", 1 << 30)],
)
def test_the_bounds_size(monkeypatch, text, size):
    monkeypatch.setenv("TINSMITH_CACHE_SIZE", text)
    assert module._limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "inf", "1X"])
def test_a_senseless_bound(monkeypatch, text):
    monkeypatch.setenv("TINSMITH_CACHE_SIZE", text)
    with pytest.raises(CacheError, match="TINSMITH_CACHE_SIZE"):
        module._limit()


def test_off_and_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TINSMITH_CACHE", "off")
    assert open_cache() is None
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "mine"))
    opened = open_cache()
    assert opened is not None
    assert opened.path == tmp_path / "mine"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "shared"))
    with pytest.warns(UserWarning, match="others may write"):
        assert open_cache() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_cache() is None  # said once


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("TINSMITH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert module.default_path() == tmp_path / "tinsmith"
    from platformdirs import user_cache_dir

    assert str(module.default_path()) == user_cache_dir("tinsmith", appauthor=False)


def test_keys_tell_apart():
    keys = {
        key_of(kind, target.key, *parts)
        for kind in ("object", "library")
        for target in (level("sse2"), level("avx2"))
        for parts in (("ab", "c"), ("a", "bc"), ("abc",))
    }
    assert len(keys) == 12


def test_compiles_what_is_missing(cache, monkeypatch):
    from tinsmith.codegen import jit

    codes = texts(6)
    first = compile_all(codes, host(), cache)
    assert list(first) == list(codes)
    seen: list[str] = []
    original = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda t, g: seen.append(t) or original(t, g))
    cache.file(key_of("object", host().key, codes["f3"])).unlink()
    assert compile_all(codes, host(), cache) == first
    assert seen == []  # this process has it still
    library.forget()
    assert compile_all(codes, host(), cache) == first
    assert seen == [codes["f3"]]


def test_threads_give_what_one_thread_gives():
    from tinsmith.codegen.jit import compile_object

    codes = texts(8)
    want = {s: compile_object(t, host()) for s, t in codes.items()}
    got: list[dict[str, bytes]] = []
    threads = [
        threading.Thread(target=lambda: got.append(compile_all(codes, host()))) for _ in range(3)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 3


WARM = """
import sys
import numpy as np
from tests.codegen.arrays import X, apply, texts
from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import host
library = load_library(texts(3), host(), open_cache())
np.testing.assert_allclose(apply(library, "f2", X), np.exp(X) + 2, rtol=1e-6)
assert not [name for name in sys.modules if name.startswith("llvmlite")]
"""


def test_a_warm_start_does_not_import_llvm(cache):
    library = load_library(texts(3), host(), cache)
    np.testing.assert_allclose(apply(library, "f1", X), np.exp(X) + 1, rtol=1e-6)
    environment = dict(os.environ, TINSMITH_CACHE=str(cache.path))
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", WARM], env=environment, cwd=root, check=True)


RACE = """
import sys
from tinsmith.codegen.cache import open_cache
cache = open_cache()
for round in range(150):
    for key in ("a", "b"):
        cache.put(key, key.encode() * 5000)
        data = cache.get(key)
        assert data is None or data == key.encode() * 5000
    if round % 40 == 0:
        for file in cache.path.iterdir():
            file.unlink(missing_ok=True)
"""


def test_many_processes(cache):
    environment = dict(os.environ, TINSMITH_CACHE=str(cache.path))
    running = [subprocess.Popen([sys.executable, "-c", RACE], env=environment) for _ in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert not [f for f in cache.path.iterdir() if re.fullmatch(UNFINISHED, f.name)]


@not_root
def test_a_read_only_directory(cache):
    cache.put("a", b"x")
    cache.path.chmod(0o500)
    try:
        assert cache.get("a") == b"x"
        assert not cache.put("b", b"y")
    finally:
        cache.path.chmod(0o700)


def test_threads_compile_side_by_side():
    """A small module is done while another thread is still at a large one."""
    from tinsmith.codegen.jit import compile_object

    large = Module(host())
    b = large.function("large", [("x", PTR)])
    x = b.pointer("x", F32)
    for k in range(60):
        (x + 16 * k).store(m.erf(m.log((x + 16 * k).load(16))))
    b.ret()
    text, small = large.text(), next(iter(texts(1).values()))
    compile_object(small, host())
    thread = threading.Thread(target=compile_object, args=(text, host()))
    thread.start()
    done = 0
    while thread.is_alive():
        compile_object(small, host())
        done += thread.is_alive()
    thread.join()
    assert done >= 3
