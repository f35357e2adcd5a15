"""ncnn's models: layers -> Graph. `model` has whole models, `node` one layer while it is imported,
the other modules a function for each layer type.

ncnn's values have 1 to 4 axes, and none for a batch. Here every value has that axis in front:
what ncnn has as (c, h, w) is (N, c, h, w), whatever N is, and axis a of ncnn is axis a + 1.
"""

from tinsmith.formats.ncnn.pair import is_param
from tinsmith.frontends import FRONTENDS, Frontend
from tinsmith.frontends.ncnn.model import load

FRONTENDS.register(
    "ncnn",
    Frontend(
        "ncnn",
        (".param", ".param.bin"),
        is_param,
        load,
        options=("random_weights", "batch", "input_shapes"),
        pairs=True,
    ),
)
