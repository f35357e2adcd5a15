"""LLVM as Tinsmith uses it, beside others in the same process."""

from __future__ import annotations

import llvmlite.binding as llvm

from tests.fresh import said
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.target import host

ROWS = f"""
target triple = "{host().triple}"
define void @rows(ptr %x, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %i, 1000
  %row = getelementptr float, ptr %x, i64 %at
  store float 1.0, ptr %row
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def _plain() -> bytes:
    """What LLVM makes of it for anybody else."""
    machine = llvm.Target.from_triple(host().triple).create_target_machine(
        cpu=host().cpu, features=host().features, opt=2, reloc="pic", codemodel="small"
    )
    return machine.emit_object(llvm.parse_assembly(ROWS, context=llvm.create_context()))


def test_loops_keep_their_arithmetic_for_us_alone():
    compile_object(ROWS, host())  # initialises LLVM
    before = _plain()
    assert compile_object(ROWS, host()) != before
    assert _plain() == before


REFUSED = """
import gc
from tinsmith.codegen.jit import compile_object
from tinsmith.codegen.target import host
from tinsmith.errors import CodegenError

V = "<8 x i64>"
for i in range(200):
    try:  # a multiply-add of integers, which does not exist
        compile_object(
            f"define {V} @f{i}({V} %a) {{\\n"
            f" %x = call {V} @llvm.fmuladd.v8i64({V} %a, {V} %a, {V} %a)\\n"
            f" ret {V} %x\\n}}\\n"
            f"declare {V} @llvm.fmuladd.v8i64({V}, {V}, {V})\\n",
            host(),
        )
    except CodegenError as error:
        kept = [error]
        kept.append(kept)
    del kept
    gc.collect()
print("alive")
"""


def test_refused_modules_are_collected_in_any_order() -> None:
    assert said(REFUSED) == "alive"
