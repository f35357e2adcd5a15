"""Many rows times constant weights of few bits (`codes.py`): a panel of columns is decoded to
float32 in the thread's workspace, and all rows are multiplied by it."""

from __future__ import annotations

from tinsmith.codegen.builder import Builder, Ptr
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel
from tinsmith.kernels.dot.codes import Blocks, blocks_of
from tinsmith.kernels.dot.matmul import FEW_ROWS, flat_rows
from tinsmith.kernels.dot.panels import each_row_panel
from tinsmith.kernels.dot.skeleton import Operands, finish_tile, product
from tinsmith.kernels.dot.small_few import DECODING, Panel, choice_of
from tinsmith.kernels.dot.tiles import choose
from tinsmith.kernels.walk import Position, load_row
from tinsmith.sizes import Size, typical


@kernel("SmallMatMul", Tier.SHAPED, dtypes="float32")
def matmul_small(site: Site) -> Choice:
    """5 rows or more times weights of 4 to 16 bits, a panel of which becomes float32 at a time."""
    blocks = blocks_of(site)
    k, n = site.const(1).shape
    m = flat_rows(site, n)
    if not isinstance(m, Size) and m <= FEW_ROWS:
        raise Skip(f"{m} rows: few are decoded in registers")
    target = site.target
    tiling = choose(target, m, n, k)
    columns, rows = tiling.columns, typical(m)
    decoding = target.time(DECODING * 2.0 * k * columns.padded, 4.0 * k * columns.size)
    busy = target.time(2.0 * rows * n * k, 4.0 * rows * (k + n), tiling.efficiency)
    expanded = blocks.padded * columns.size  # float32 of a full panel, decoded

    def panel(em: Emit) -> Panel:
        real, lead = em.workspace.cast(F32), len(em.site.out.dims) - 1
        buffer = (real + expanded).fixed()

        def body(words: Ptr, column: Position, widths: tuple[int, ...], valid: int) -> None:
            size = sum(widths)
            _expand(em.b, blocks, words, real, widths)

            def tile(row: Position, height: int) -> None:
                line = (em.input(0).pointer + row * blocks.depth).fixed()
                at = Operands(line, blocks.depth, real, size, blocks.depth)
                sums = product(em.b, at, height, widths, tiling.accumulators)
                finish_tile(em, sums, row, column, valid, buffer, (0, lead))

            each_row_panel(em.b, tiling.rows, 0, tiling.rows.count, tile)

        return body

    return choice_of(site, blocks, tiling, busy + decoding, panel, workspace=4 * expanded)


def _expand(b: Builder, blocks: Blocks, words: Ptr, to: Ptr, widths: tuple[int, ...]) -> None:
    """Emit code that decodes the packed panel at `words` to weights, [k][column], at `to`."""
    size, code = sum(widths), blocks.code

    def block(words: Ptr, to: Ptr, depth: int) -> None:
        count = blocks.words(depth)
        line = (words + count * size).cast(F32)
        scales = None if code.is_float else load_row(line, widths)
        zeros = load_row(line + size, widths) if blocks.zeros else None
        with b.loop(0, count) as i:
            source, sink = words + i * size, (to + i * (code.group * size)).fixed()
            found = load_row(source, widths)
            for place in range(code.group):
                offset = place * size
                for j, word in enumerate(found):
                    x = code.raw(word, place)
                    if scales is not None:
                        zero = zeros[j] if zeros else None
                        x = blocks.weight(x, code.powers[place], scales[j], zero)
                    (sink + offset).store(x)
                    offset += x.ty.lanes

    if blocks.full:
        with b.loop(0, blocks.full) as i:
            source = (words + i * (blocks.rows(blocks.size) * size)).fixed()
            block(source, (to + i * (blocks.size * size)).fixed(), blocks.size)
    if blocks.rest:
        source = words + blocks.full * blocks.rows(blocks.size) * size
        block(source, to + blocks.full * blocks.size * size, blocks.rest)
