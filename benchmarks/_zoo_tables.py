"""Small networks on tables, graphs, points and games in plain torch, by architectures that no
library ships. NETS names them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def dense(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Clicks by numbers and categories: all pairs of their embeddings, multiplied."""

    def __init__(self, fields: int = 6, w: int = 16, vocab: int = 100) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(vocab, w) for _ in range(fields))
        self.low, pairs = dense(13, 64, w), fields * (fields + 1) // 2
        self.high = dense(w + pairs, 64, 32, 1)

    def forward(self, numbers: Any, ids: Any) -> Any:
        low = self.low(numbers)
        rows = torch.stack([low, *(t(ids[:, k]) for k, t in enumerate(self.tables))], 1)
        products = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(rows.shape[1], rows.shape[1], -1)
        return torch.sigmoid(self.high(torch.cat([low, products[:, i, j]], 1)))


class DeepFm(nn.Module):
    """Clicks by a factorisation machine beside dense layers."""

    def __init__(self, fields: int = 10, w: int = 8, vocab: int = 100) -> None:
        super().__init__()
        self.linear, self.table = nn.Embedding(vocab, 1), nn.Embedding(vocab, w)
        self.deep = dense(fields * w, 64, 64, 1)

    def forward(self, ids: Any) -> Any:
        rows = self.table(ids)
        pairs = 0.5 * (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(ids).sum(1) + pairs + self.deep(rows.flatten(1)))


class Ncf(nn.Module):
    """What a user makes of an item: a product of embeddings beside dense layers."""

    def __init__(self, w: int = 32, vocab: int = 100) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(vocab, 2 * w), nn.Embedding(vocab, 2 * w)
        self.deep, self.head = dense(2 * w, 64, w), nn.Linear(2 * w, 1)

    def forward(self, user: Any, item: Any) -> Any:
        (u, p), (v, q) = self.users(user).chunk(2, 1), self.items(item).chunk(2, 1)
        return torch.sigmoid(self.head(torch.cat([u * v, self.deep(torch.cat([p, q], 1))], 1)))


class Interest(nn.Module):
    """The next click by attention from an item to those clicked before (DIN)."""

    def __init__(self, w: int = 24, vocab: int = 100) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, w)
        self.weigh, self.head = dense(4 * w, 32, 1), dense(2 * w, 32, 1)

    def forward(self, item: Any, before: Any) -> Any:
        target, seen = self.table(item), self.table(before)
        near = target[:, None].expand_as(seen)
        scores = self.weigh(torch.cat([near, seen, near - seen, near * seen], 2))
        scores = scores.masked_fill((before % 5 == 0)[..., None], -1e9)
        wanted = (torch.softmax(scores, 1) * seen).sum(1)
        return torch.sigmoid(self.head(torch.cat([target, wanted], 1)))


class Gcn(nn.Module):
    """Two layers of neighbours' sums over an adjacency matrix, normalised by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 7)

    def forward(self, x: Any, links: Any) -> Any:
        near = (links > 0.5).float() + torch.eye(links.shape[0])
        scale = near.sum(1).rsqrt()
        near = scale[:, None] * near * scale
        return F.log_softmax(near @ self.second(F.relu(near @ self.first(x))), -1)


class Gat(nn.Module):
    """Attention over the edges of a graph, a softmax over those that end in a node."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(16, w), nn.Linear(w, 7)
        self.source, self.target = nn.Linear(w, 1), nn.Linear(w, 1)

    def forward(self, x: Any, edges: Any) -> Any:
        y, (start, end) = self.lift(x), edges
        score = F.leaky_relu(self.source(y)[start] + self.target(y)[end], 0.2).exp()
        zero = torch.zeros(x.shape[0], 1)
        total = zero.index_add(0, end, score)[end]
        mixed = torch.zeros_like(y).index_add(0, end, score / total * y[start])
        return self.head(F.elu(mixed))


class Sage(nn.Module):
    """A node beside the mean of its neighbours, twice, to length one (GraphSAGE)."""

    def __init__(self, w: int = 32) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(16, w), nn.Linear(w, w)])
        self.near = nn.ModuleList([nn.Linear(16, w), nn.Linear(w, w)])

    def forward(self, x: Any, edges: Any) -> Any:
        start, end = edges
        for own, near in zip(self.own, self.near, strict=True):
            index = end[:, None].expand(-1, x.shape[1])
            total = torch.zeros_like(x).scatter_add(0, index, x[start])
            count = torch.zeros(x.shape[0]).scatter_add(0, end, torch.ones(end.shape[0]))
            x = F.relu(own(x) + near(total / count.clamp(min=1)[:, None]))
        return F.normalize(x, dim=1)


class PointNet(nn.Module):
    """Points are turned by a matrix made of them all, lifted, and the greatest of each is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.turn = self.lift(3, 32, 64), dense(64, 32, 9)
        self.net, self.head = self.lift(3, 32, 64, 128), dense(128, 64, 10)

    @staticmethod
    def lift(*sizes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, o in pairwise(sizes):
            layers += [nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        turn = self.turn(self.look(x).amax(2)).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.net((x.transpose(1, 2) @ turn).transpose(1, 2)).amax(2))


class EdgeConv(nn.Module):
    """Points with their eight nearest, found among all distances (DGCNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(6, 32, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        n, count, _ = x.shape
        square = (x * x).sum(2)
        far = square[:, :, None] - 2 * x @ x.transpose(1, 2) + square[:, None]
        near = far.topk(8, largest=False)[1].view(n, -1, 1).expand(-1, -1, 3)
        others = x.gather(1, near).view(n, count, 8, 3)
        own = x[:, :, None].expand_as(others)
        edges = torch.cat([own, others - own], 3).permute(0, 3, 1, 2)
        return self.head(self.net(edges).amax(3).amax(2))


class Nerf(nn.Module):
    """Colours of rays: samples as waves of their places, densities, and what shines through."""

    def __init__(self, w: int = 64, octaves: int = 6) -> None:
        super().__init__()
        self.octaves, size = octaves, 3 + 6 * octaves
        self.first, self.second = dense(size, w, w, w), dense(size + w, w, 4)

    def forward(self, points: Any) -> Any:
        scaled = points[..., None] * 2.0 ** torch.arange(self.octaves)
        near = torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)
        y = self.second(torch.cat([near, F.relu(self.first(near))], -1))
        thin = torch.exp(-0.1 * F.softplus(y[..., 0]))
        through = torch.cumsum(torch.log(thin), -1).exp()
        weights = (1 - thin) * through / thin
        return (weights[..., None] * torch.sigmoid(y[..., 1:])).sum(-2)


class Experts(nn.Module):
    """A token goes through the best two of four dense layers, as a gate says."""

    def __init__(self, w: int = 48, count: int = 4) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(w, count), nn.ModuleList(
            dense(w, 2 * w, w) for _ in range(count)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        best, which = self.gate(x).topk(2)
        shares = torch.zeros_like(self.gate(x)).scatter(-1, which, torch.softmax(best, -1))
        return sum(shares[..., k : k + 1] * f(x) for k, f in enumerate(self.experts))


class Dueling(nn.Module):
    """Values of actions in a game of four frames: the state's, and what each action adds."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        self.net = nn.Sequential(*first, nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten())
        self.value, self.gain = dense(3136, 128, 1), dense(3136, 128, 6)

    def forward(self, x: Any) -> Any:
        y = self.net(x)
        gain = self.gain(y)
        return self.value(y) + gain - gain.mean(1, keepdim=True)


NETS: dict[str, Callable[[], nn.Module]] = {
    "dlrm": Dlrm, "deepfm": DeepFm, "ncf": Ncf, "din": Interest, "gcn": Gcn, "gat": Gat,
    "graphsage": Sage, "pointnet": PointNet, "dgcnn": EdgeConv, "nerf": Nerf, "moe": Experts,
    "dueling_dqn": Dueling,
}  # fmt: skip
