"""Small networks on images in plain torch, by architectures that no library ships: what
recognises text, finds objects, segments, restores and draws. NETS names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks._detector import Detector
from benchmarks._nets import Dcgan, Edsr, Espcn, UNet


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution with batch norm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Capsules(nn.Module):
    """CapsNet: primary capsules, three rounds of routing by agreement, lengths of the classes'."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 64, 9), nn.Conv2d(64, 64, 9, 2)
        self.weights = nn.Parameter(0.1 * torch.randn(288, 10, 8, 16))

    @staticmethod
    def squash(s: Any) -> Any:
        norm = (s * s).sum(-1, keepdim=True)
        return norm / (1 + norm) * s / torch.sqrt(norm + 1e-8)

    def forward(self, x: Any) -> Any:
        y = self.second(F.relu(self.first(x)))
        low = self.squash(y.reshape(y.shape[0], 8, -1).transpose(1, 2))
        votes = torch.einsum("nid,icde->nice", low, self.weights)
        logits = torch.zeros_like(votes[..., 0])
        high = votes.sum(1)
        for _ in range(3):
            shares = torch.softmax(logits, 2)[..., None]
            high = self.squash((shares * votes).sum(1))
            logits = logits + (votes * high[:, None]).sum(-1)
        return high.norm(dim=-1)


class SpatialTransformer(nn.Module):
    """A classifier that turns and scales its input first."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(conv(1, 8, 7, 2), conv(8, 10, 5, 2), nn.Flatten())
        self.turn = nn.Sequential(nn.Linear(490, 32), nn.ReLU(), nn.Linear(32, 6))
        self.net = nn.Sequential(conv(1, 10, 5, 2), conv(10, 20, 5, 2), nn.Flatten())
        self.head = nn.Linear(980, 10)

    def forward(self, x: Any) -> Any:
        theta = 0.1 * self.turn(self.look(x)).view(-1, 2, 3)
        theta = theta + torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        rows = torch.linspace(-1, 1, x.shape[2])
        v, u = torch.meshgrid(rows, rows, indexing="ij")
        places = torch.stack([u, v, torch.ones_like(u)], -1).view(1, -1, 3)
        grid = (places @ theta.transpose(1, 2)).view(-1, x.shape[2], x.shape[3], 2)
        return self.head(self.net(F.grid_sample(x, grid, align_corners=False)))


class Crnn(nn.Module):
    """Text in a line of an image: convolutions, bidirectional LSTM layers, letters by column."""

    def __init__(self, letters: int = 37) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(conv(1, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d(2)),
            *(conv(64, 128), nn.MaxPool2d((2, 1)), conv(128, 128), nn.MaxPool2d((4, 1))),
        )
        self.rnn = nn.LSTM(128, 96, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(192, letters)

    def forward(self, x: Any) -> Any:
        columns = self.net(x)[:, :, 0].transpose(1, 2)
        return F.log_softmax(self.head(self.rnn(columns)[0]), -1)


class Pyramid(nn.Module):
    """Features of a backbone's three levels, joined from above (FPN)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2)), conv(32, 64, 3, 2)]
        )
        self.down.append(conv(64, 96, 3, 2))
        self.side = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (32, 64, 96))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(3))

    def forward(self, x: Any) -> list[Any]:
        levels = []
        for step, side in zip(self.down, self.side, strict=True):
            x = step(x)
            levels.append(side(x))
        for k in (1, 0):
            levels[k] = levels[k] + F.interpolate(levels[k + 1], scale_factor=2, mode="nearest")
        return [f(y) for f, y in zip(self.smooth, levels, strict=True)]


class RetinaNet(nn.Module):
    """One pair of heads on all levels of a pyramid; the best 50 boxes with their classes."""

    def __init__(self, classes: int = 20, anchors: int = 3) -> None:
        super().__init__()
        self.pyramid, self.classes = Pyramid(), classes
        self.score = nn.Sequential(conv(48, 48), nn.Conv2d(48, anchors * classes, 3, 1, 1))
        self.box = nn.Sequential(conv(48, 48), nn.Conv2d(48, anchors * 4, 3, 1, 1))

    def forward(self, x: Any) -> Any:
        n, found = x.shape[0], self.pyramid(x)
        scores = [self.score(y).permute(0, 2, 3, 1).reshape(n, -1, self.classes) for y in found]
        boxes = torch.cat([self.box(y).permute(0, 2, 3, 1).reshape(n, -1, 4) for y in found], 1)
        best, kind = torch.sigmoid(torch.cat(scores, 1)).max(-1)
        top, where = best.topk(50, 1)
        picked = boxes.gather(1, where[..., None].expand(-1, -1, 4))
        size = torch.exp(picked[..., 2:].clamp(max=4.0))
        corners = torch.cat([picked[..., :2] - size / 2, picked[..., :2] + size / 2], -1)
        return corners, top, kind.gather(1, where)


class CenterNet(nn.Module):
    """Objects as peaks of a heat map: those that are the maximum of their neighbourhood."""

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = Pyramid()
        self.heat, self.size = nn.Conv2d(48, 10, 1), nn.Conv2d(48, 2, 1)

    def forward(self, x: Any) -> Any:
        y = self.pyramid(x)[0]
        heat, size = torch.sigmoid(self.heat(y)), self.size(y).flatten(2)
        peaks = heat * (heat == F.max_pool2d(heat, 3, 1, 1)).float()
        best, where = peaks.flatten(1).topk(20)
        at = where % size.shape[2]
        return best, where // size.shape[2], size.gather(2, at[:, None].expand(-1, 2, -1))


class PspNet(nn.Module):
    """Segmentation with means over grids of 1, 2, 3 and 6."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, 64))
        self.parts = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(k), conv(64, 16, 1)) for k in (1, 2, 3, 6)
        )
        self.head = nn.Sequential(conv(128, 64), nn.Conv2d(64, 12, 1))

    def forward(self, x: Any) -> Any:
        y = self.net(x)
        size = y.shape[2:]
        wide = [F.interpolate(p(y), size, mode="bilinear") for p in self.parts]
        z = self.head(torch.cat([y, *wide], 1))
        return F.interpolate(z, x.shape[2:], mode="bilinear", align_corners=True)


class Hourglass(nn.Module):
    """Poses as heat maps: down and up again by recursion, with a side path at each size."""

    def __init__(self, depth: int = 4, width: int = 32) -> None:
        super().__init__()
        self.first, self.depth = conv(3, width, 7, 2), depth
        self.side = nn.ModuleList(conv(width, width) for _ in range(depth))
        self.low = nn.ModuleList(conv(width, width) for _ in range(depth))
        self.up = nn.ModuleList(conv(width, width) for _ in range(depth))
        self.head = nn.Conv2d(width, 16, 1)

    def level(self, x: Any, k: int) -> Any:
        if k == self.depth:
            return x
        low = self.level(self.low[k](F.max_pool2d(x, 2)), k + 1)
        return self.side[k](x) + F.interpolate(self.up[k](low), scale_factor=2)

    def forward(self, x: Any) -> Any:
        return self.head(self.level(self.first(x), 0))


class Volume(nn.Module):
    """A 3-D U-Net of two levels with instance norms."""

    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.near, self.far, self.join = (
            self.block(1, w),
            self.block(w, 2 * w),
            self.block(2 * w, w),
        )
        self.up, self.head = nn.ConvTranspose3d(2 * w, w, 2, 2), nn.Conv3d(w, 3, 1)

    @staticmethod
    def block(i: int, o: int) -> nn.Sequential:
        norm = nn.InstanceNorm3d(o, affine=True)
        return nn.Sequential(nn.Conv3d(i, o, 3, 1, 1), norm, nn.LeakyReLU(0.01))

    def forward(self, x: Any) -> Any:
        near = self.near(x)
        far = self.far(F.max_pool3d(near, 2))
        return torch.softmax(self.head(self.join(torch.cat([self.up(far), near], 1))), 1)


class DnCnn(nn.Module):
    """Noise as the residual of seven convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers = [conv(48, 48) for _ in range(5)]
        self.net = nn.Sequential(
            nn.Conv2d(1, 48, 3, 1, 1), nn.ReLU(), *layers, nn.Conv2d(48, 1, 3, 1, 1)
        )

    def forward(self, x: Any) -> Any:
        return x - self.net(x)


class Fsrcnn(nn.Module):
    """Super-resolution by three with PReLUs and a transposed convolution at the end."""

    def __init__(self) -> None:
        super().__init__()
        shrink = [nn.Conv2d(1, 56, 5, 1, 2), nn.PReLU(56), nn.Conv2d(56, 12, 1), nn.PReLU(12)]
        middle = [f for _ in range(4) for f in (nn.Conv2d(12, 12, 3, 1, 1), nn.PReLU(12))]
        last = [nn.Conv2d(12, 56, 1), nn.PReLU(56), nn.ConvTranspose2d(56, 1, 9, 3, 4, 2)]
        self.net = nn.Sequential(*shrink, *middle, *last)

    def forward(self, x: Any) -> Any:
        return self.net(x) + F.interpolate(x, scale_factor=3, mode="bicubic")


class Rrdb(nn.Module):
    """Super-resolution by dense blocks in residuals (ESRGAN)."""

    def __init__(self, width: int = 32, grow: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        outs = [grow] * 4 + [width]
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width + k * grow, o, 3, 1, 1) for k, o in enumerate(outs))
            for _ in range(blocks)
        )

    def forward(self, x: Any) -> Any:
        y = first = self.first(x)
        for block in self.blocks:
            seen = [y]
            for layer in list(block)[:-1]:
                seen.append(F.leaky_relu(layer(torch.cat(seen, 1)), 0.2))
            y = y + 0.2 * block[-1](torch.cat(seen, 1))
        return self.last(F.interpolate(first + y, scale_factor=2))


class CycleGan(nn.Module):
    """A translator of images: reflected edges, instance norms, residual blocks."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        layers = [nn.ReflectionPad2d(3), *self.part(nn.Conv2d(3, w, 7))]
        layers += self.part(nn.Conv2d(w, 2 * w, 3, 2, 1))
        self.down = nn.Sequential(*layers)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ReflectionPad2d(1), *self.part(nn.Conv2d(2 * w, 2 * w, 3)))
            for _ in range(3)
        )
        up = self.part(nn.ConvTranspose2d(2 * w, w, 3, 2, 1, 1))
        self.up = nn.Sequential(*up, nn.ReflectionPad2d(3), nn.Conv2d(w, 3, 7), nn.Tanh())

    @staticmethod
    def part(layer: Any) -> list[nn.Module]:
        return [layer, nn.InstanceNorm2d(layer.out_channels), nn.ReLU()]

    def forward(self, x: Any) -> Any:
        y = self.down(x)
        for block in self.blocks:
            y = y + block(y)
        return self.up(y)


class StyleGan(nn.Module):
    """Two layers whose convolutions are scaled and normalised by a style (StyleGAN2)."""

    def __init__(self, w: int = 32) -> None:
        super().__init__()
        maps = [f for _ in range(3) for f in (nn.Linear(w, w), nn.LeakyReLU(0.2))]
        self.mapping, self.start = nn.Sequential(*maps), nn.Parameter(torch.randn(1, w, 8, 8))
        self.style = nn.ModuleList(nn.Linear(w, w) for _ in range(2))
        self.weights = nn.ParameterList(torch.randn(w, w, 3, 3) / 16 for _ in range(2))
        self.colours = nn.Conv2d(w, 3, 1)

    def forward(self, z: Any) -> Any:
        style = self.mapping(z * torch.rsqrt((z * z).mean(1, keepdim=True) + 1e-8))
        x = self.start
        for project, weights in zip(self.style, self.weights, strict=True):
            scaled = weights * project(style)[0][None, :, None, None]
            norm = torch.rsqrt((scaled * scaled).sum((1, 2, 3), keepdim=True) + 1e-8)
            x = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = F.leaky_relu(F.conv2d(x, scaled * norm, padding=1), 0.2)
        return torch.tanh(self.colours(x))


def waves(t: Any, width: int) -> Any:
    """A number as sines and cosines of falling frequencies."""
    rates = torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2))
    angles = t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Residual(nn.Module):
    """Group norm, SiLU, convolution, twice; the time enters between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.last = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time, self.side = nn.Linear(time, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Any, t: Any) -> Any:
        y = self.conv(F.silu(self.first(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.side(x) + self.last(F.silu(self.second(y)))


class Across(nn.Module):
    """Attention from pixels to themselves, or to a text."""

    def __init__(self, width: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(context, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any, text: Any = None) -> Any:
        n, c, h, w = x.shape
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        seen = pixels if text is None else text
        q = self.q(pixels).view(n, h * w, self.heads, -1).transpose(1, 2)
        k, v = self.kv(seen).view(n, seen.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.out(y).transpose(1, 2).reshape(n, c, h, w)


class Diffusion(nn.Module):
    """The noise of an image at a time, with a text: a U-Net with attention at its bottom."""

    def __init__(self, w: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(w, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w))
        self.first, self.near = nn.Conv2d(4, w, 3, 1, 1), Residual(w, w, 4 * w)
        self.down, self.far = nn.Conv2d(w, w, 3, 2, 1), Residual(w, 2 * w, 4 * w)
        self.among, self.cross = Across(2 * w, 2 * w), Across(2 * w, 48)
        self.up, self.join = nn.Conv2d(2 * w, w, 3, 1, 1), Residual(2 * w, w, 4 * w)
        self.last = nn.Sequential(nn.GroupNorm(8, w), nn.SiLU(), nn.Conv2d(w, 4, 3, 1, 1))

    def forward(self, x: Any, t: Any, text: Any) -> Any:
        t = self.time(waves(t, 32))
        near = self.near(self.first(x), t)
        far = self.cross(self.among(self.far(self.down(near), t)), text)
        back = self.up(F.interpolate(far, scale_factor=2))
        return self.last(self.join(torch.cat([back, near], 1), t))


class DiT(nn.Module):
    """Diffusion by a transformer on patches, whose norms the time scales and shifts."""

    def __init__(self, w: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.cut, self.time = nn.Conv2d(4, w, 2, 2), nn.Linear(w, 6 * w)
        self.width, self.heads = w, heads
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.norm = nn.LayerNorm(w, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(w, 4 * w), nn.GELU("tanh"), nn.Linear(4 * w, w))
        self.last = nn.Linear(w, 16)

    def forward(self, x: Any, t: Any) -> Any:
        y = self.cut(x).flatten(2).transpose(1, 2)
        n, count, w = y.shape
        shift, scale, gate, low, high, end = self.time(waves(t, self.width))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm(y) * (1 + scale) + shift).view(
            n, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # fmt: skip
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, count, w)
        y = y + gate * self.out(mixed)
        y = y + end * self.mlp(self.norm(y) * (1 + high) + low)
        return F.pixel_shuffle(self.last(y).transpose(1, 2).reshape(n, 16, 8, 8), 2)


NETS: dict[str, Callable[[], nn.Module]] = {
    "capsnet": Capsules, "spatial_transformer": SpatialTransformer, "crnn": Crnn,
    "retinanet": RetinaNet, "centernet": CenterNet, "yolo": Detector, "pspnet": PspNet,
    "hourglass": Hourglass, "unet": lambda: UNet(16), "unet3d": Volume, "dncnn": DnCnn,
    "espcn": Espcn, "fsrcnn": Fsrcnn, "edsr": lambda: Edsr(32, 4), "rrdb": Rrdb, "dcgan": Dcgan,
    "cyclegan": CycleGan, "stylegan2": StyleGan, "diffusion_unet": Diffusion, "dit": DiT,
}  # fmt: skip
