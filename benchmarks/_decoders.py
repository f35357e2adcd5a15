"""How each engine generates tokens with the decoder of `benchmarks.decoder`, in its own process.

A decoder is a function `(file, threads) -> (begin, step)`: `begin(cache)` begins with keys and
values by the names of the inputs, `step(token)` gives the logits of the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
Decoder = tuple[Callable[[dict[str, Array]], None], Callable[[int], Array]]
CACHE, IDS, LOGITS = ("past", "present"), "ids", "logits"


def _tinsmith(file: Path, threads: int) -> Decoder:
    import tinsmith

    session = tinsmith.compile(file, threads=threads).session(states=True)
    return session.reset, lambda token: session(np.array([[token]]))


def _onnxruntime(file: Path, threads: int, bound: bool = False) -> Decoder:
    """The results of a run are the inputs of the next; `bound`, without numpy arrays between."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    held: dict[str, Any] = {}

    def begin(cache: dict[str, Array]) -> None:
        made = ort.OrtValue.ortvalue_from_numpy if bound else np.array
        held.update({name: made(array) for name, array in cache.items()})

    def step(token: int) -> Array:
        ids = np.array([[token]])
        if bound:
            io = session.io_binding()
            io.bind_cpu_input(IDS, ids)
            for name, value in held.items():
                io.bind_ortvalue_input(name, value)
            for name in names:
                io.bind_output(name, "cpu")
            session.run_with_iobinding(io)
        found = io.get_outputs() if bound else session.run(names, {IDS: ids, **held})
        results = dict(zip(names, found, strict=True))
        logits = results.pop(LOGITS)
        held.update({name.replace(*CACHE[::-1]): value for name, value in results.items()})
        return logits.numpy() if bound else logits

    return begin, step


DECODERS: dict[str, Callable[[Path, int], Decoder]] = {
    "tinsmith": _tinsmith,
    "onnxruntime": _onnxruntime,
    "onnxruntime bound": partial(_onnxruntime, bound=True),
}
