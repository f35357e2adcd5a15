"""Small models for the PNNX tests, made by torch and the program `pnnx` (package pnnx):

    python -m tests.frontends.pnnx_models tests/data/pnnx [NAME ...]

Each is one function over tensors; `pnnx` writes NAME.pnnx.param and .bin, torch the numbers of
NAME.npz: x0, x1, ... and y0, y1, ... More of them are in `pnnx_more_models`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

X = (2, 6, 9, 10)
"""Batch, channels, height and width of what most models take."""


class Several(nn.Module):
    """Modules of the same input, each of which gives an output."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return tuple(part(x) for part in self.parts)


class Of(nn.Module):
    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *xs):
        return self.function(*self.parts, *xs)


def each(*functions):
    return Of(lambda *xs: tuple(f(*xs) for f in functions))


def grown(module):
    """With statistics and weights that are not those of a new one."""
    for p in module.parameters():
        nn.init.uniform_(p, -0.5, 0.5)
    for name, b in module.named_buffers():
        if b.is_floating_point():
            nn.init.uniform_(b, 0.3 if "var" in name else -0.3, 1.0)
    return module


MODELS = {}


def model(name, *shapes):
    def register(make):
        MODELS[name] = make, shapes
        return make

    return register


@model("activations", X)
def activations():
    return Several(
        nn.ReLU(),
        nn.ReLU6(),
        nn.SiLU(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.Hardsigmoid(),
        nn.Hardswish(),
        nn.Hardtanh(-0.5, 0.7),
        nn.ELU(0.7),
        nn.CELU(1.3),
        nn.SELU(),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.LeakyReLU(0.2),
        nn.PReLU(6),
        nn.PReLU(1),
        nn.Mish(),
        nn.Softplus(2.0, 15.0),
        nn.Softsign(),
        nn.Softshrink(0.3),
        nn.Hardshrink(0.4),
        nn.Tanhshrink(),
        nn.Threshold(0.1, -3.0),
        nn.LogSigmoid(),
        nn.GLU(1),
        nn.Softmax(1),
        nn.LogSoftmax(-1),
        nn.Softmin(2),
        nn.Softmax2d(),
        nn.RReLU(0.1, 0.3),
        nn.Identity(),
        nn.Dropout(),
        nn.ChannelShuffle(3),
    )


@model("functional_activations", X)
def functional_activations():
    return each(
        F.relu,
        F.relu6,
        F.silu,
        F.sigmoid,
        F.tanh,
        F.hardsigmoid,
        F.hardswish,
        lambda x: F.hardtanh(x, -0.5, 0.7),
        lambda x: F.elu(x, 0.7),
        lambda x: F.celu(x, 1.3),
        F.selu,
        F.gelu,
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.leaky_relu(x, 0.2),
        F.mish,
        lambda x: F.softplus(x, 2.0, 15.0),
        F.softsign,
        lambda x: F.softshrink(x, 0.3),
        lambda x: F.hardshrink(x, 0.4),
        F.tanhshrink,
        lambda x: F.threshold(x, 0.1, -3.0),
        F.logsigmoid,
        lambda x: F.glu(x, 1),
        lambda x: F.softmax(x, 1),
        lambda x: F.log_softmax(x, 2),
        lambda x: F.softmin(x, 1),
        lambda x: F.normalize(x, p=2.0, dim=1),
        lambda x: F.normalize(x, p=1.0, dim=-1),
        lambda x: F.prelu(x, torch.full((6,), 0.3)),
        lambda x: F.dropout(x, 0.5, False),
    )


@model("convolutions", X)
def convolutions():
    return grown(
        Several(
            nn.Conv2d(6, 4, 3),
            nn.Conv2d(6, 8, (3, 2), (2, 1), (1, 0), (1, 2), 2, False),
            nn.Conv2d(6, 4, 3, padding="same", dilation=2),
            nn.Conv2d(6, 4, 3, padding="valid"),
            nn.Conv2d(6, 4, 4, padding="same"),
            nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(6, 4, 3, padding=(2, 1), padding_mode="replicate"),
            nn.Conv2d(6, 4, 3, padding=(2, 1), padding_mode="circular"),
            nn.ConvTranspose2d(6, 4, 3, 2, 1, 1),
            nn.ConvTranspose2d(6, 4, (3, 2), (1, 2), 0, (0, 1), 2, False, (2, 1)),
            nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        )
    )


@model("convolutions_1d", (2, 6, 11))
def convolutions_1d():
    return grown(
        Several(
            nn.Conv1d(6, 4, 3, 2, 1),
            nn.Conv1d(6, 4, 3, padding="same", groups=2),
            nn.ConvTranspose1d(6, 4, 3, 2, 1, 1),
            nn.MaxPool1d(3, 2, 1),
            nn.AvgPool1d(3, 2, 1),
            nn.AdaptiveAvgPool1d(5),
            nn.AdaptiveMaxPool1d(4),
            nn.BatchNorm1d(6),
            nn.InstanceNorm1d(6, affine=True),
            nn.ConstantPad1d((1, 2), 0.5),
            nn.ReflectionPad1d(2),
            nn.ReplicationPad1d((2, 1)),
            nn.Upsample(scale_factor=2),
            nn.Upsample(size=17, mode="linear"),
        )
    )


@model("convolutions_3d", (1, 4, 5, 6, 7))
def convolutions_3d():
    return grown(
        Several(
            nn.Conv3d(4, 2, 3, 2, 1),
            nn.ConvTranspose3d(4, 2, 2, 2),
            nn.MaxPool3d(2),
            nn.AvgPool3d(2, 1),
            nn.AdaptiveAvgPool3d((2, 3, None)),
            nn.AdaptiveMaxPool3d(1),
            nn.BatchNorm3d(4),
            nn.InstanceNorm3d(4),
            nn.ConstantPad3d(1, 2.0),
            nn.ReplicationPad3d(1),
            nn.Upsample(scale_factor=2, mode="trilinear"),
        )
    )


@model("functional_convolutions", X, (4, 6, 3, 3), (6, 2, 3, 3), (4,))
def functional_convolutions():
    return each(
        lambda x, w, t, b: F.conv2d(x, w, b, 2, 1),
        lambda x, w, t, b: F.conv2d(x, w, None, padding="same"),
        lambda x, w, t, b: F.conv_transpose2d(x, t, None, 2, 1, 1),
        lambda x, w, t, b: F.linear(x, x[0, 0]),
        lambda x, w, t, b: F.linear(x[..., :4], w[:, :4, 0, 0], b),
    )


@model("pools", X)
def pools():
    return Several(
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d((3, 2), (1, 2), (1, 0), (2, 1)),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, divisor_override=5),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, None)),
        nn.AdaptiveAvgPool2d((4, 7)),
        nn.AdaptiveMaxPool2d(1),
        nn.AdaptiveMaxPool2d((3, 5)),
        nn.LPPool2d(2, 3, 2),
        nn.LocalResponseNorm(3),
        nn.LocalResponseNorm(4, 1e-3, 0.6, 1.5),
    )


@model("functional_pools", X)
def functional_pools():
    return each(
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        lambda x: F.adaptive_max_pool2d(x, (4, 2)),
        lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
        lambda x: F.local_response_norm(x, 5),
        lambda x: F.lp_pool2d(x, 2, 2),
        lambda x: F.avg_pool1d(x[0], 2),
        lambda x: F.max_pool1d(x[0], 2, 1),
    )


@model("norms", X)
def norms():
    return grown(
        Several(
            nn.BatchNorm2d(6),
            nn.BatchNorm2d(6, eps=1e-3, affine=False),
            nn.InstanceNorm2d(6),
            nn.InstanceNorm2d(6, affine=True),
            nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
            nn.GroupNorm(3, 6),
            nn.GroupNorm(2, 6, affine=False),
            nn.LayerNorm(10),
            nn.LayerNorm((9, 10), eps=1e-3),
            nn.LayerNorm(10, elementwise_affine=False),
            nn.RMSNorm(10, eps=1e-6),
            nn.Linear(10, 7),
            nn.Linear(10, 3, bias=False),
        )
    )


@model("functional_norms", X, (6,), (10,))
def functional_norms():
    return each(
        lambda x, c, w: F.batch_norm(x, c, c * c + 1, c, c),
        lambda x, c, w: F.layer_norm(x, (10,), w, w),
        lambda x, c, w: F.layer_norm(x, (9, 10)),
        lambda x, c, w: F.group_norm(x, 3, c, c),
        lambda x, c, w: F.instance_norm(x),
        lambda x, c, w: F.rms_norm(x, (10,), w, 1e-5),
        lambda x, c, w: F.instance_norm(x, weight=c, bias=c),
        lambda x, c, w: F.group_norm(x, 2),
    )


@model("resizes", (1, 3, 6, 7))
def resizes():
    return Several(
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=(1.5, 2.5)),
        nn.Upsample(size=(5, 9)),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(size=(11, 4), mode="bilinear", align_corners=True),
        nn.Upsample(scale_factor=2, mode="bicubic"),
        nn.UpsamplingNearest2d(scale_factor=3),
        nn.UpsamplingBilinear2d(size=(9, 9)),
        Of(lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear")),
        Of(lambda x: F.interpolate(x, size=(13, 5), mode="bicubic", align_corners=True)),
        Of(
            lambda x: F.interpolate(
                x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
            )
        ),
        Of(lambda x: F.interpolate(x, scale_factor=0.6, mode="nearest")),
        Of(lambda x: F.interpolate(x, size=(3, 4), mode="area")),
        Of(lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 3), mode="nearest")),
    )


@model("pads", (1, 3, 6, 7))
def pads():
    return Several(
        nn.ZeroPad2d((1, 2, 0, 3)),
        nn.ConstantPad2d(2, 1.5),
        nn.ReflectionPad2d((1, 2, 3, 0)),
        nn.ReplicationPad2d(2),
        Of(lambda x: F.pad(x, (1, 2))),
        Of(lambda x: F.pad(x, (1, 2, 3, 0, 1, 1), value=-2.0)),
        Of(lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect")),
        Of(lambda x: F.pad(x, (-1, 2, 1, -2))),
        Of(lambda x: F.pad(x, (1, 2, 3, 1), mode="circular")),
        nn.ZeroPad2d((-1, 1, -2, 0)),
    )


@model("shapes", (2, 3, 4, 5))
def shapes():
    return each(
        lambda x: x.view(2, 12, 5),
        lambda x: x.reshape(-1, 5),
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x.transpose(1, 3),
        lambda x: x.flatten(1),
        lambda x: torch.flatten(x, 1, 2),
        lambda x: x.unsqueeze(1),
        lambda x: x[:, :1].squeeze(1),
        lambda x: x[..., :1].squeeze(),
        lambda x: x[0, 0].t(),
        lambda x: x[:, 1:3],
        lambda x: x[:, :, ::2, 1:-1],
        lambda x: x[:, 1],
        lambda x: x[..., -1],
        lambda x: x.select(2, -2),
        lambda x: x[:, 0:1].expand(2, 4, -1, 5),
        lambda x: x.repeat(1, 2, 1, 3),
        lambda x: torch.flip(x, (1, 3)),
        lambda x: torch.roll(x, (1, -2), (2, 3)),
        lambda x: x.unflatten(2, (2, 2)),
        lambda x: x.view(x.shape[0], x.shape[1], -1),
        lambda x: x.mT,
        lambda x: torch.repeat_interleave(x, 2, 1),
        lambda x: x.narrow(3, 1, 3),
        lambda x: torch.tile(x, (2, 1)),
        lambda x: x.reshape_as(x.flatten(0, 1)),
        lambda x: torch.movedim(x, 1, 3),
        lambda x: x.swapaxes(0, 2),
        lambda x: x[:, None, :, 2],
        lambda x: x[1, :, 2:, 3],
        lambda x: x.expand_as(x),
        lambda x: torch.diag(x[0, 0]),
        lambda x: x[0, 0, 0].diag(1),
        lambda x: x.transpose(1, 2).contiguous().view(2, 4, 15),
        lambda x: torch.tril(x),
        lambda x: torch.triu(x, 1),
    )


@model("joins", (2, 6, 4), (2, 6, 4))
def joins():
    return each(
        lambda x, y: torch.cat((x, y), 1),
        lambda x, y: torch.cat((x, y, x), -1),
        lambda x, y: torch.stack((x, y), 1),
        lambda x, y: torch.cat(torch.chunk(x, 3, 1)[::-1], 1),
        lambda x, y: torch.split(x, (1, 2, 3), 1)[1],
        lambda x, y: torch.split(x, 4, 1)[1],
        lambda x, y: x.unbind(1)[2] + x.unbind(1)[3],
        lambda x, y: torch.tensor_split(x, (2, 3), 1)[2],
        lambda x, y: torch.tensor_split(x, 4, 1)[0],
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: torch.where(x > 0, x, 0.5),
        lambda x, y: x.masked_fill(y > 0, -1.0),
        lambda x, y: torch.stack((x, y), -1),
    )


@model("products", (2, 3, 4), (2, 4, 5), (3, 5), (4,))
def products():
    return each(
        lambda a, b, c, d: a @ b,
        lambda a, b, c, d: torch.bmm(a, b),
        lambda a, b, c, d: torch.addmm(c, a[0], b[0], beta=0.5, alpha=2.0),
        lambda a, b, c, d: torch.mm(a[0], b[0]),
        lambda a, b, c, d: torch.baddbmm(c, a, b, beta=0.5),
        lambda a, b, c, d: a @ d,
        lambda a, b, c, d: torch.mv(a[0], d),
        lambda a, b, c, d: torch.einsum("bij,bjk->bik", a, b),
        lambda a, b, c, d: torch.einsum("bij,bjk,ik->i", a, b, c),
        lambda a, b, c, d: torch.einsum("...j,jk", a, b[0]),
        lambda a, b, c, d: torch.outer(d, d),
        lambda a, b, c, d: torch.einsum("ii->i", a[0, :, :3]),
    )


@model("reductions", (2, 3, 4, 5))
def reductions():
    return each(
        lambda x: x.mean(),
        lambda x: x.mean((2, 3)),
        lambda x: x.mean(1, keepdim=True),
        lambda x: x.sum(),
        lambda x: x.sum((1, -1)),
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.amax((1, 2)),
        lambda x: x.amin(-1, keepdim=True),
        lambda x: x.max(),
        lambda x: x.max(1)[0],
        lambda x: x.max(1, True)[1],
        lambda x: x.min(2)[0],
        lambda x: x.prod(1),
        lambda x: x.norm(2, 1),
        lambda x: x.norm(2, (1, 2), True),
        lambda x: x.norm(1, -1),
        lambda x: x.logsumexp(1),
        lambda x: x.var(1),
        lambda x: x.var((2, 3), unbiased=False, keepdim=True),
        lambda x: x.std(1),
        lambda x: x.std((1, 2), keepdim=True),
        lambda x: x.argmax(1),
        lambda x: x.argmin(-1, True),
        lambda x: x.cumsum(1),
        lambda x: x.cumprod(-1),
        lambda x: x.topk(3, 3)[0],
        lambda x: x.topk(2, 1, False)[1],
        lambda x: torch.norm(x),
        lambda x: x.sort(-1)[0],
        lambda x: x.argmax(),
    )


@model("arithmetic", (2, 3, 4), (2, 3, 4))
def arithmetic():
    positive = lambda x: x.abs() + 0.5  # noqa: E731
    return each(
        lambda x, y: x + y * 2,
        lambda x, y: x - y,
        lambda x, y: x / positive(y),
        lambda x, y: x * y,
        lambda x, y: 1 - x,
        lambda x, y: 2 / positive(x),
        lambda x, y: positive(x) ** y,
        lambda x, y: x**2,
        lambda x, y: -x,
        lambda x, y: x.floor() + x.ceil() + x.round() + x.trunc(),
        lambda x, y: torch.fmod(x, positive(y)),
        lambda x, y: torch.remainder(x, positive(y)),
        lambda x, y: torch.atan2(x, y),
        lambda x, y: torch.maximum(x, y) + torch.minimum(x, y),
        lambda x, y: torch.logaddexp(x, y),
        lambda x, y: torch.floor_divide(x, positive(y)),
        lambda x, y: x.sin() + x.cos() + x.tan(),
        lambda x, y: x.sinh() + x.cosh() + x.tanh() + x.asinh(),
        lambda x, y: (
            (x / 4).asin() + (x / 4).acos() + x.atan() + (x / 4).atanh() + (positive(x) + 1).acosh()
        ),
        lambda x, y: positive(x).log() + positive(x).log10() + positive(x).log1p(),
        lambda x, y: x.exp() + x.expm1() + x.erf() + x.sign() + x.square(),
        lambda x, y: positive(x).sqrt() + positive(x).rsqrt() + positive(x).reciprocal(),
        lambda x, y: x.clamp(-0.3, 0.4),
        lambda x, y: x.clamp(min=0.1),
        lambda x, y: x.clamp_max(0.2),
        lambda x, y: (x > y).float() + (x >= 0.1),
        lambda x, y: (x != y) & (x < y),
        lambda x, y: torch.logical_or(x > 0, y > 0),
        lambda x, y: ~(x > 0),
        lambda x, y: (x * 10).int() // 3,
        lambda x, y: (x * 10).long() % 3,
        lambda x, y: torch.add(x, y, alpha=3),
        lambda x, y: (x * 10).int() & 5 | 2,
        lambda x, y: x * x.size(1) + x.shape[2] // 2,
        lambda x, y: torch.sub(x, y, alpha=0.5),
        lambda x, y: x.double() + 1,
        lambda x, y: torch.zeros_like(x) + torch.ones_like(y),
        lambda x, y: torch.full_like(x, 3.0) + torch.full((2, 3, 4), 2.0),
        lambda x, y: x + torch.arange(4),
        lambda x, y: (x == y).logical_not(),
    )


@model("indices", (2, 3, 4, 5))
def indices():
    at = torch.tensor([2, 0])
    return each(
        lambda x: x.index_select(1, at),
        lambda x: x[:, at],
        lambda x: x[:, :, at, at],
        lambda x: torch.gather(x, 3, (x * 0).long() + 1),
        lambda x: x[:, [2, 1, 0]],
        lambda x: x[at % 2],
        lambda x: F.pixel_shuffle(x.reshape(1, 8, 3, 5), 2),
        lambda x: F.pixel_unshuffle(x[..., :4], 2),
        lambda x: F.unfold(x, (2, 3), padding=1),
        lambda x: F.fold(F.unfold(x, 2), (4, 5), 2),
        lambda x: F.one_hot((x[:, 0, 0] * 0).long() + 1, 3),
    )


@model("recurrent", (3, 7, 5))
def recurrent():
    def run(a, b, c, d, e, x):
        y, (h, s) = a(x)
        z, g = c(x)
        return y, h, s, b(x)[0], z, g, d(x)[0], e(x)[0]

    return Of(
        run,
        nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True),
        nn.LSTM(5, 4, bias=False),
        nn.GRU(5, 4, 2, batch_first=True, bidirectional=True),
        nn.RNN(5, 4, nonlinearity="relu"),
        nn.RNN(5, 3, 2, batch_first=True),
    )


@model("recurrent_states", (7, 3, 5), (1, 3, 4), (1, 3, 4))
def recurrent_states():
    def run(a, b, c, x, h, s):
        y, (h1, s1) = a(x, (h, s))
        return y, h1, s1, b(x, h)[0], c(x, (s, h))[0]

    return Of(run, nn.LSTM(5, 4), nn.GRU(5, 4), nn.LSTM(5, 4))


@model("projected", (7, 3, 5), (2, 3, 2), (2, 3, 4))
def projected():
    def run(a, b, x, h, s):
        y, (h1, s1) = a(x, (h, s))
        z, (h2, s2) = b(x.transpose(0, 1))
        return y, h1, s1, z, h2, s2

    two = nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True, proj_size=3)
    return Of(run, nn.LSTM(5, 4, bidirectional=True, proj_size=2), two)


@model("attention", (2, 5, 8), (2, 7, 8), (5, 5))
def attention():
    def run(a, b, c, x, y, m):
        return (
            a(x, x, x)[0],
            a(x, y, y)[0],
            *b(x.transpose(0, 1), y.transpose(0, 1), y.transpose(0, 1)),
            a(x, x, x, need_weights=False, attn_mask=m)[0],
            c(x, y, y)[0],
            F.scaled_dot_product_attention(
                x.view(2, 5, 2, 4).transpose(1, 2),
                y.view(2, 7, 2, 4).transpose(1, 2),
                y.view(2, 7, 2, 4).transpose(1, 2),
            ),
            F.scaled_dot_product_attention(x, x, x, attn_mask=m, scale=0.3),
            F.scaled_dot_product_attention(x, x, x, is_causal=True),
        )

    return Of(
        run,
        *map(
            grown,
            (
                nn.MultiheadAttention(8, 2, batch_first=True),
                nn.MultiheadAttention(8, 4, bias=False),
                nn.MultiheadAttention(
                    8, 2, kdim=8, vdim=8, add_bias_kv=True, add_zero_attn=True, batch_first=True
                ),
            ),
        ),
    )


@model("embeddings", (2, 5))
def embeddings():
    return Of(
        lambda e, x: (e((x.abs() * 4).long()), F.embedding((x.abs() * 2).long() // 2, x)),
        nn.Embedding(9, 6),
    )


@model("samplers", (1, 4, 6, 7), (1, 5, 5, 2), (1, 2, 3))
def samplers():
    return each(
        lambda x, g, t: F.grid_sample(x, g, align_corners=False),
        lambda x, g, t: F.grid_sample(x, g, "nearest", "border", True),
        lambda x, g, t: F.grid_sample(x, g, "bicubic", "reflection", False),
        lambda x, g, t: F.grid_sample(
            x, F.affine_grid(t, (1, 4, 5, 3), align_corners=True), align_corners=True
        ),
    )


@model("dynamic", (2, 6, 8), (2, 5, 6))
def dynamic():
    """Traced with other sizes as well, so that none of them is known."""
    idx = torch.arange(3)
    return each(
        lambda x, y: x[:, : y.size(1), 1 : y.size(2) - 1],
        lambda x, y: x[:, 1 : y.size(1) : 2, y.size(2) - 1],
        lambda x, y: x.view(x.size(0), -1, x.size(2) // 2, 2),
        lambda x, y: F.interpolate(x[:, None], size=(y.size(1) * 2, y.size(2))),
        lambda x, y: x.expand(y.size(0), -1, -1) + x.new_zeros(x.size(1), x.size(2)),
        lambda x, y: x[:, torch.arange(x.size(1))],
        lambda x, y: x.reshape(-1),
        lambda x, y: x[:, :, idx],
        lambda x, y: torch.full((x.size(0), 2), 1.5),
        lambda x, y: x.repeat(1, y.size(1), 1),
        lambda x, y: torch.flatten(x, 1),
        lambda x, y: x.mean(1) * x.size(2),
        lambda x, y: x.permute(2, 0, 1).flatten(0, 1),
        lambda x, y: torch.cat((x, x * 2), 1).unflatten(1, (2, -1)),
    )


def _sizes(shapes) -> str:
    return ",".join(str(list(s)).replace(" ", "") + "f32" for s in shapes)


def write(folder: Path, name: str, pnnx: str) -> str:
    make, shapes = MODELS[name]
    torch.manual_seed(0)
    net, xs = make().eval(), [torch.rand(s) * 2 - 1 for s in shapes]
    with torch.no_grad(), tempfile.TemporaryDirectory() as work:
        ys = net(*xs)
        torch.jit.trace(net, tuple(xs), check_trace=False).save(f"{work}/{name}.pt")
        words = [f"{name}.pt", f"inputshape={_sizes(shapes)}"]
        if name == "dynamic":
            words.append(f"inputshape2={_sizes([[s[0] + 1, s[1] + 2, s[2] + 2] for s in shapes])}")
        done = subprocess.run([pnnx, *words], cwd=work, capture_output=True, text=True)
        for end in (".pnnx.param", ".pnnx.bin"):
            if (path := Path(work, name + end)).exists():
                (folder / path.name).write_bytes(path.read_bytes())
            else:
                return f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    arrays = {f"x{i}": x.numpy() for i, x in enumerate(xs)}
    arrays |= {f"y{i}": y.detach().numpy() for i, y in enumerate(ys)}
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return ""


def main() -> None:
    """Write the models that are named, or all."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).with_name("pnnx"))
    for model_name in sys.argv[2:] or MODELS:
        try:
            print(model_name, write(target, model_name, program) or "ok", flush=True)
        except Exception as error:
            print(model_name, repr(error)[:600], flush=True)


if __name__ == "__main__":
    main()
