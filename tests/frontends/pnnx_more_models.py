"""More of the models of `pnnx_models`: spectra, complex numbers, and writing into parts of tensors.

python -m tests.frontends.pnnx_more_models tests/data/pnnx spectra complex_numbers
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.frontends.pnnx_models import Of, X, each, main, model


def real(z):
    return torch.view_as_real(z)


@model("complex_numbers", (2, 3, 4, 2), (2, 3, 4, 2))
def complex_numbers():
    """Numbers that enter and leave as pairs of real ones."""

    def of(function):
        return lambda x, y: function(torch.view_as_complex(x), torch.view_as_complex(y))

    return each(
        of(lambda a, b: real(a + b)),
        of(lambda a, b: real(a - b.real)),
        of(lambda a, b: real(1.5 - a * b)),
        of(lambda a, b: real(a / (b + 2))),
        of(lambda a, b: real(a * b.imag)),
        of(lambda a, b: a.abs()),
        of(lambda a, b: a.imag + b.real),
        of(lambda a, b: real(torch.complex(a.real.sin(), b.imag))),
        of(lambda a, b: real(a.reshape(2, 12).transpose(0, 1))),
        of(lambda a, b: real(torch.cat((a, b), 1)[:, 1:4])),
        of(lambda a, b: real(torch.stack((a, b), 1).sum(2))),
        of(lambda a, b: real(a.unsqueeze(1).permute(0, 3, 1, 2))),
    )


@model("spectra", (2, 3, 8, 9), (2, 400), (100,))
def spectra():
    window = torch.hann_window(80)

    def stft(x, **options):
        return torch.stft(x, 128, 40, 80, window, return_complex=True, **options)

    def inverse(x, **options):
        z = torch.stft(x, 128, 32, window=torch.ones(128), return_complex=True)
        return torch.istft(z, 128, 32, window=torch.ones(128), **options)

    return each(
        lambda x, s, t: real(torch.fft.fft(x)),
        lambda x, s, t: real(torch.fft.fft2(x, norm="ortho")),
        lambda x, s, t: real(torch.fft.fftn(x, dim=(1, 3))),
        lambda x, s, t: real(torch.fft.ifft(x, n=6, dim=2, norm="forward").resolve_conj()),
        lambda x, s, t: real(torch.fft.rfft(x, dim=1)),
        lambda x, s, t: real(torch.fft.rfft2(x, norm="ortho")),
        lambda x, s, t: torch.fft.irfft(torch.fft.rfft(x), n=9),
        lambda x, s, t: torch.fft.irfft2(
            torch.fft.rfft2(x, norm="ortho") * x[..., :5], norm="ortho"
        ),
        lambda x, s, t: torch.fft.irfftn(torch.fft.rfftn(x, dim=(-2, -1)), s=(8, 9), dim=(-2, -1)),
        lambda x, s, t: torch.fft.hfft(x, n=7, norm="ortho"),
        lambda x, s, t: real(torch.fft.ihfft(x, dim=2).resolve_conj()),
        lambda x, s, t: torch.fft.hfft2(x, norm="forward"),
        lambda x, s, t: real(torch.fft.ifft2(torch.fft.fft2(x))),
        lambda x, s, t: real(stft(s)),
        lambda x, s, t: stft(s, center=False, normalized=True).abs(),
        lambda x, s, t: real(stft(t, pad_mode="constant", onesided=False)),
        lambda x, s, t: inverse(s),
        lambda x, s, t: inverse(s, length=390),
    )


def set_to(place):
    """What writes y into a part of x, in place."""

    def run(x, y):
        z = x.clone()
        place(z, y)
        return z

    return run


def _assign(*index):
    def place(z, y):
        z[index] = y[index] * 2

    return place


@model("written", (3, 4, 6), (3, 4, 6))
def written():
    def number(z, y):
        z[:, 1, ::2] = 7.0

    def narrow(z, y):
        z[1:, :2] += y[:2, 1:3]

    def repeated(z, y):
        z[..., 2:5] = y[0, 0, 1:4]

    return each(
        set_to(_assign(slice(1, 3))),
        set_to(_assign(slice(None), slice(None, None, 2))),
        set_to(_assign(1, slice(None), slice(2, -1))),
        set_to(_assign(slice(None), slice(None), -1)),
        set_to(number),
        set_to(narrow),
        set_to(repeated),
        lambda x, y: torch.slice_scatter(x, y[:, :, :2], 2, 1, 5, 2),
        lambda x, y: x.index_put((torch.tensor([2, 0]),), y[:2]),
        lambda x, y: x.index_put((torch.tensor([2, 2]), torch.tensor([1, 1])), y[0, :2], True),
        lambda x, y: x.scatter(1, torch.tensor([[[1, 0]], [[2, 3]]]), y[:2]),
        lambda x, y: x.scatter(1, torch.tensor([[[1, 0]], [[2, 3]]]), 4.0),
        lambda x, y: x.scatter_add(1, torch.zeros(3, 4, 6, dtype=torch.long), y),
        lambda x, y: torch.repeat_interleave(x, torch.tensor([1, 0, 3]), 0),
        lambda x, y: torch.roll(x, 5),
        lambda x, y: x[torch.tensor([True, False, True])],
        lambda x, y: x[:, torch.tensor([False, True, True, False]), torch.tensor([3, 1])],
        lambda x, y: torch.masked_select(x, y > 0),
        lambda x, y: torch.as_strided(x, (2, 3), (5, 2)),
        lambda x, y: torch.cross(x, y, 0),
        lambda x, y: torch.cross(x[:, :1], y[:, 2:3], 0),
        lambda x, y: torch.lgamma(x * 4),
        lambda x, y: F.pairwise_distance(x, y, 1.0, 1e-3, True),
        lambda x, y: F.pairwise_distance(x[0], y[0]),
    )


@model("places", X, (6,))
def places():
    """What PyTorch rounds or counts in its own way."""

    return each(
        lambda x, c: F.interpolate(x, size=(27, 3)),
        lambda x, c: F.interpolate(F.interpolate(x, size=(80, 10)), size=(24, 10)),
        lambda x, c: F.interpolate(x[:, :2], scale_factor=(41.0, 1.0)),
        lambda x, c: F.interpolate(x, size=(23, 7), mode="nearest-exact"),
        lambda x, c: F.instance_norm(x, c * 0, c * c + 1, c, c),
        lambda x, c: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)[0],
        lambda x, c: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)[1],
        lambda x, c: F.adaptive_max_pool2d((x * 2).round(), (None, 2), return_indices=True)[1],
        lambda x, c: F.lp_pool2d(x, 1, 2),
        lambda x, c: F.lp_pool2d(x.abs(), 1.5, 3, 2, True),
        lambda x, c: F.pixel_shuffle(x.reshape(2, 1, 3, 4, 5, 9), 2),
        lambda x, c: F.pixel_unshuffle(x[0, :, :8], 2),
    )


@model("bins", X)
def bins():
    """A module gives its places in a tuple."""
    return Of(
        lambda a, b, x: (*a(x), *b(x[0])),
        nn.AdaptiveMaxPool2d((4, 3), return_indices=True),
        nn.AdaptiveMaxPool1d(4, return_indices=True),
    )


if __name__ == "__main__":
    main()
