"""Reads sounds as model inputs: PCM in .wav files, by Python's `wave` module. Inputs may be

    float32[samples], float32[N,samples]    for one channel
    float32[N,channels,samples]             for as many channels as the input has
    int16 of these shapes                   samples as they are; floats are scaled to -1..1

Nothing is resampled.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.errors import InputShapeError, InputTypeError, ModelFileError
from tinsmith.formats.mapped import open_file
from tinsmith.graph import Type

SUFFIXES = frozenset((".wav", ".wave"))


def read_sound(path: Path, type_: Type, name: str) -> np.ndarray[Any, Any]:
    """Read a sound as an array of an input's type; N is 1. Raises InputError, ModelFileError."""
    rank, kind = type_.rank, type_.dtype
    if rank not in (1, 2, 3) or not (kind.kind == "f" or kind == np.int16):
        raise InputTypeError(
            f"the input {name!r} is {type_}; a sound fits [samples], [N,samples] or "
            "[N,channels,samples] of floats or int16"
        )
    samples = decoded(path)
    if kind == np.int16:
        if samples.dtype != np.int16:
            raise InputTypeError(f"{path} has no samples of 16 bits, which {name!r} takes")
    else:
        samples = scaled(samples).astype(kind)
    wanted = type_.shape[1] if type_.shape is not None and rank == 3 else 1
    if isinstance(wanted, int) and wanted != len(samples):
        raise InputShapeError(
            f"{path} has {len(samples)} channels, the input {name!r} takes {wanted}: {type_}"
        )
    return samples[0] if rank == 1 else samples if rank == 2 else samples[None]


def decoded(path: Path) -> np.ndarray[Any, Any]:
    """Read the samples of a WAV file (PCM) as integers [channels, samples]: uint8 (128 is zero),
    int16 or int32; samples of 24 bits become the upper bytes of int32. Raises ModelFileError."""
    try:
        with open_file(path) as file, wave.open(file, "rb") as sound:
            channels, width = sound.getnchannels(), sound.getsampwidth()
            data = sound.readframes(sound.getnframes())
            if len(data) != sound.getnframes() * width * channels:
                raise EOFError
        if width not in (1, 2, 3, 4):
            raise wave.Error(f"samples of {width} bytes")
    except (OSError, EOFError, wave.Error) as error:
        why = str(error) or "it ends too early"
        raise ModelFileError(f"{path} cannot be read as a sound in PCM: {why}") from error
    if width == 3:  # the upper bytes of 32 bits
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0]
    else:
        samples = np.frombuffer(data, {1: "u1", 2: "<i2", 4: "<i4"}[width])
    return np.ascontiguousarray(samples.reshape(-1, channels).T)


def scaled(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Scale integer samples to -1..1; uint8 samples are unsigned, with zero at 128."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    return samples.astype(np.float32) / (np.iinfo(samples.dtype).max + 1)
