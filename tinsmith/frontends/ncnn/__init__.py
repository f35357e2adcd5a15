"""ncnn's models: layers -> Graph. `model` imports a whole model, `node` has the class of a layer
while it is imported, and the other modules a function for each layer type.

Values in ncnn have 1 to 4 axes, and no axis for a batch. In the graph every value has an axis for
a batch in front: (c, h, w) in ncnn is (N, c, h, w), and axis a of ncnn is axis a + 1.
"""

from tinsmith.formats.ncnn.pair import is_param
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.frontends.ncnn.model import load

OPTIONS = ("random_weights", "batch", "input_shapes")
FRONTENDS.register(
    "ncnn", Frontend("ncnn", (".param", ".param.bin"), is_param, load, options=OPTIONS, pairs=True)
)
