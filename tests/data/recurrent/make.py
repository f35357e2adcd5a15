"""Writes the models beside this file: `python make.py`, with torch, onnx and onnxscript."""

from pathlib import Path

import onnx
import torch
from torch import nn

HERE = Path(__file__).parent


class Cells(nn.Module):
    """torch's own cells, called step by step over [N, T, I]."""

    def __init__(self, kind, back=False, **kwargs):
        super().__init__()
        self.cell, self.hidden, self.back = getattr(nn, kind)(3, 4, **kwargs), 4, back

    def forward(self, x):
        n, steps, _ = x.shape
        h, c, out = x.new_zeros(n, self.hidden), x.new_zeros(n, self.hidden), []
        for k in range(steps - 1, -1, -1) if self.back else range(steps):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, k], (h, c))
            else:
                h = self.cell(x[:, k], h)
            out.append(h)
        return torch.stack(out[::-1] if self.back else out, 1), h


class HandLSTM(nn.Module):
    """[x, h] in one product, a forget bias, states given."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Linear(7, 16)

    def forward(self, x, h, c):
        ys = []
        for xt in x.unbind(0):
            i, f, g, o = self.kernel(torch.cat([xt, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys), h, c


class HandGRU(nn.Module):
    """Two layers of both directions, reset before the product, joined at each step."""

    def __init__(self):
        super().__init__()
        widths = [3 + 4, 3 + 4, 8 + 4, 8 + 4]
        self.gates = nn.ModuleList(nn.Linear(w, 8) for w in widths)
        self.last = nn.ModuleList(nn.Linear(w, 4) for w in widths)

    def one(self, k, xs):
        h, ys = xs[0].new_zeros(xs[0].shape[0], 4), []
        for x in xs:
            z, r = torch.sigmoid(self.gates[k](torch.cat([x, h], -1))).split(4, -1)
            n = torch.tanh(self.last[k](torch.cat([x, r * h], -1)))
            h = (1 - z) * n + z * h
            ys.append(h)
        return ys

    def forward(self, x):
        xs = [x[:, t, :] for t in range(x.shape[1])]
        for layer in (0, 2):
            ahead, back = self.one(layer, xs), self.one(layer + 1, xs[::-1])[::-1]
            xs = [torch.cat([p, q], -1) for p, q in zip(ahead, back, strict=True)]
        return torch.stack(xs, 1)


def strip(path):
    """Drop what names the exporter's source files."""
    model = onnx.load(path)
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    for part in [*model.graph.node, *model.graph.input, *model.graph.output, *model.functions]:
        part.doc_string = ""
        del part.metadata_props[:]
    onnx.save(model, path)


def main():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3)
    jobs = {
        "lstm_cell": (Cells("LSTMCell"), (x,)),
        "gru_cell": (Cells("GRUCell"), (x,)),
        "gru_cell_back": (Cells("GRUCell", back=True, bias=False), (x,)),
        "rnn_cell": (Cells("RNNCell"), (x,)),
        "hand_lstm": (HandLSTM(), (torch.randn(5, 2, 3), torch.randn(2, 4), torch.randn(2, 4))),
        "hand_gru": (HandGRU(), (x,)),
    }
    for name, (module, args) in jobs.items():
        script, dynamo = (str(HERE / f"{name}_{how}.onnx") for how in ("script", "dynamo"))
        torch.onnx.export(module.eval(), args, script, dynamo=False, opset_version=17)
        torch.onnx.export(module, args, dynamo=True).save(dynamo)
        strip(script)
        strip(dynamo)
    free = str(HERE / "lstm_cell_free_script.onnx")
    options = {"input_names": ["x"], "opset_version": 17}
    torch.onnx.export(
        jobs["lstm_cell"][0], (x,), free, dynamo=False, dynamic_axes={"x": {0: "N"}}, **options
    )
    strip(free)
    free = str(HERE / "gru_cell_free_dynamo.onnx")
    program = torch.onnx.export(
        jobs["gru_cell"][0], (x,), dynamo=True, input_names=["x"], dynamic_shapes=({0: "N"},)
    )
    program.save(free)
    strip(free)


if __name__ == "__main__":
    main()
