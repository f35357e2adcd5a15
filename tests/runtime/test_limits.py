"""What the machine is measured at: kept for reports, and found where memory is short."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinsmith.codegen import cache as code_cache
from tinsmith.codegen.products import PRODUCTS, VECTORS, Product
from tinsmith.codegen.target import Target, host, level
from tinsmith.runtime import gauge, limits
from tinsmith.runtime.limits import _peak, peak


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TINSMITH_CACHE", str(folder))
    code_cache._open.cache_clear()
    _peak.cache_clear()
    yield folder
    _peak.cache_clear()


def test_threads_that_need_it_at_the_same_time_measure_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Target] = []

    def slow(target: Target, row: Product) -> float:
        measured.append(target)
        time.sleep(0.05)
        return 1.23e11

    monkeypatch.setattr(gauge, "peak_of", slow)
    threads = [threading.Thread(target=peak, args=(host(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measured) == 1
    assert peak(host()) == 1.2e11
    _peak.cache_clear()
    assert peak(host()) == 1.2e11 and len(measured) == 1, "it is kept on disk"


@pytest.mark.parametrize("numbers", ["0", "-1", "1e999", '"a"', "null", "[]"])
@pytest.mark.parametrize("note", ["", "[]", '{"peak": 5e9}', '{"float32": NUMBER}'])
def test_a_note_without_a_peak_counts_as_absent(
    cache: Path, monkeypatch: pytest.MonkeyPatch, note: str, numbers: str
) -> None:
    monkeypatch.setattr(gauge, "peak_of", lambda *_, row: 1.5e11)
    peak(host())
    (file,) = cache.glob("limits-*.json")
    code_cache.write_note(file, note.replace("NUMBER", numbers))
    _peak.cache_clear()
    assert peak(host()) == 1.5e11
    assert json.loads(code_cache.read_note(file) or "") == {"float32": 1.5e11}


def test_each_row_is_measured_once_and_kept_in_one_note(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(gauge, "peak_of", lambda *_, row: measured.append(row.name) or row.rate)
    rows = list(PRODUCTS)
    for name in (*rows, *rows):
        _peak.cache_clear()
        assert peak(host(), row=name) == pytest.approx(PRODUCTS[name].rate, rel=0.05)
    assert measured == rows and len(list(cache.glob("limits-*.json"))) == 1


@pytest.mark.parametrize("name", [n for n, row in PRODUCTS.items() if row.unit == VECTORS])
def test_every_row_of_products_is_measured(name: str, cache: Path) -> None:
    row = PRODUCTS[name]
    if not row.needs(host()):
        pytest.skip(f"no {name} here")
    assert row.rate / 3 < peak(host(), row=name) / peak(host()) < 3 * row.rate


def test_without_vectors_the_peak_is_that_of_vectors_as_wide_as_kernels_have() -> None:
    if host().triple.startswith("x86_64"):
        assert gauge.fma_loop(level("scalar"))[1] == gauge.fma_loop(level("sse2"))[1]


def test_memory_that_is_short_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.ones

    def short(size: int, dtype: type[np.float32]) -> np.ndarray:
        if size * 4 > 3 << 20:
            raise MemoryError
        return ones(size, dtype)

    monkeypatch.setattr(np, "ones", short)
    assert gauge._ones(16 << 20).nbytes == 2 << 20
    read, data = gauge.read_loop(host()), gauge._ones(16 << 20)
    assert gauge._memory_rate(read, data) > 0 and gauge._rate_together(read, data, 128) > 0
    monkeypatch.setattr(np, "ones", lambda *_: short(1 << 30, np.float32))
    with pytest.raises(MemoryError):
        gauge._ones(16 << 20)


def test_many_cores_share_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "usable_cores", lambda: 5)
    read = gauge.read_loop(host())
    unit = gauge.STREAMS * host().lanes
    assert gauge._rate_together(read, np.ones(6 * unit, np.float32), unit) > 0
    assert gauge._rate_together(read, np.ones(4 * unit, np.float32), unit) == 0


def test_threads_without_cores_do_not_raise_the_peak(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauge, "peak_of", lambda *_, row: 1e11)
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    assert [peak(host(), n) for n in (1, 2, 16)] == [1e11, 2e11, 2e11]
