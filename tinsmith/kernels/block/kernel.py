"""1x1, depthwise and 1x1 convolutions as one kernel.

Rows of the expanded image go into a ring buffer that stays in the core's cache. As soon as all rows
under the window of the next output rows are there, they are filtered and projected. The expanded
image never reaches memory. Rows beyond the image are zeros of the expanded image.
"""

from __future__ import annotations

from tinsmith.kernels._kernel import Choice, Packed, Site, Tier, kernel, one_phase
from tinsmith.kernels.block.emit import emit_block, tiles_of, workspace
from tinsmith.kernels.block.plan import BlockPlan, plan_block
from tinsmith.kernels.block.stages import Stages, stages_of
from tinsmith.kernels.layout import Layout
from tinsmith.kernels.window.depthwise import pack_taps
from tinsmith.kernels.window.weights import pack_bias, pack_panels


@kernel("Block", Tier.SHAPED, dtypes="float32", numbers=True)
def conv_block(site: Site) -> Choice:
    """Expand, depthwise and project in one, by rows through the core's cache."""
    stages = stages_of(site)
    reads = stages.reads()
    plan = plan_block(site.target, stages.shape)
    return Choice(
        cost=plan.cost, reads=reads, writes=(Layout(stages.width),),
        phases=one_phase(tiles_of(stages, plan), lambda em: emit_block(em, stages, plan)),
        packed=tuple(_packed(stages, plan)), workspace=workspace(stages, plan),
        detail=f"{plan.most} rows, {plan.bands} bands",
    )  # fmt: skip


def _packed(stages: Stages, plan: BlockPlan) -> list[Packed]:
    width = stages.width
    found: list[Packed] = []
    for name, stage, dense in (
        ("expand", stages.expand, plan.expand),
        ("depthwise", stages.depthwise, None),
        ("project", stages.project, plan.project),
    ):
        if stage is None:
            continue
        if dense is None:
            found += stage.packed(name, (pack_taps, width), (pack_taps, width))
        else:
            cut = dense.panels
            found += stage.packed(name, (pack_panels, cut, dense.blocks), (pack_bias, cut))
    return found
