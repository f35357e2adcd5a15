"""Tokens with a cache of keys and values that grows: `python -m benchmarks.decoder`.

Decoders as exporters write them, past and new joined, generate tokens greedily, one at a time,
after a cache that is there already. ONNX Runtime takes its results as the next inputs, as numpy
arrays and by IO binding. Engines take turns, each in a process of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks._main import OURS, deliver, places_options, progress, require
from benchmarks.client import Client, EngineFailed
from benchmarks.machine import cores_for
from benchmarks.places import Places
from benchmarks.report import empty_table

ENGINES = [OURS, "onnxruntime", "onnxruntime bound"]
MODELS = {"2 x 128": (128, 4, 2), "4 x 768": (768, 12, 4)}
"""Width, heads and layers, by name."""
PASTS = (0, 2048, 8192)
VOCABULARY, MOST = 1000, 16384


def write(name: str, folder: Path) -> Path:
    """A decoder's file."""
    import onnx

    from tests.decoder import decoder

    width, heads, layers = MODELS[name]
    file = folder / f"{layers}x{width}.onnx"
    onnx.save(decoder(d=width, heads=heads, layers=layers, vocab=VOCABULARY, most=MOST), file)
    return file


def cached_bytes(name: str, rows: float) -> float:
    """Bytes of the keys and values of so many tokens."""
    width, _, layers = MODELS[name]
    return 2 * layers * width * rows * 4


def measure(
    name: str, file: Path, past: int, tokens: int, rounds: int, places: Places
) -> list[dict[str, Any]]:
    """A row for each engine: milliseconds of a token, of the median round."""
    clients: dict[str, Client] = {}
    taken: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    said: dict[str, list[int]] = {}
    width, heads, layers = MODELS[name]
    cache = {"heads": heads, "width": width // heads, "layers": layers, "past": past}
    rows: list[dict[str, Any]] = []
    try:
        for engine in ENGINES:
            python = sys.executable if engine == OURS else places.peers
            clients[engine] = Client(python)
            clients[engine].ask("decoder", engine=engine, file=str(file), cpus=cores_for(1))
        for turn in range(1 + rounds):  # the first warms up
            for engine, client in clients.items():
                found = client.ask("generate", cache=cache, tokens=tokens)
                said[engine] = found["tokens"]
                taken[engine] += [found["ms"] / tokens] if turn else []
    finally:
        for client in clients.values():
            client.close()
    for engine, times in taken.items():
        row = {"model": name, "past": past, "engine": engine, "tokens": tokens}
        row["ms"], row["same"] = statistics.median(times), said[engine] == said[ENGINES[1]]
        rows.append(row)
    return rows


def as_table(rows: list[dict[str, Any]]) -> Table:
    columns = ("past", "engine", "ms a token", "ours / it", "GB/s", "same tokens")
    out = empty_table("tokens with a cache that grows", ["model"], columns)
    ours = {(r["model"], r["past"]): r["ms"] for r in rows if r["engine"] == OURS}
    least = {r["model"]: r["ms"] for r in rows if r["engine"] == OURS and not r["past"]}
    for r in rows:
        rate = ""
        if r["past"] and r["engine"] == OURS and r["model"] in least:
            more = (r["ms"] - least[r["model"]]) / 1e3
            rate = f"{cached_bytes(r['model'], r['past']) / more / 1e9:.1f}"
        share = f"{ours[r['model'], r['past']] / r['ms']:.2f}"
        same = "yes" if r["same"] else "no"
        out.add_row(
            r["model"], str(r["past"]), r["engine"], f"{r['ms']:.3f}", share, rate, same
        )  # fmt: skip
    return out


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default=None, help="One of them alone.")
@click.option("--past", type=int, default=None, help="One length alone.")
@click.option("--tokens", default=100, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@places_options
def main(
    model: str | None, past: int | None, tokens: int, rounds: int, places: Places, out: Path | None
) -> None:
    """Tokens one by one after a past, on one thread. GB/s: the keys and values of the past in the
    time that they add to a token."""
    require(places.peers, "the peers' Python")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, progress() as status:
        for name in MODELS if model is None else [model]:
            file = write(name, Path(folder))
            for length in PASTS if past is None else [past]:
                status.update(f"{name}, {length} tokens")
                try:
                    rows += measure(name, file, length, tokens, rounds, places)
                except EngineFailed as error:
                    raise click.ClickException(str(error)) from error
    deliver(as_table(rows), rows, out)


if __name__ == "__main__":
    main()
