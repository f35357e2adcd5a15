"""What ncnn computes: `python peer.py FOLDER`, where ncnn is installed.

FOLDER holds NAME.param, NAME.bin and NAME.npz with the inputs; written is NAME.out.npz.
Each model has a process of its own, since ncnn ends that on some layers.
"""

import os
import sys
from pathlib import Path

import ncnn
import numpy as np


def run(param):
    net = ncnn.Net()
    net.opt.use_fp16_arithmetic = net.opt.use_fp16_storage = net.opt.use_fp16_packed = False
    net.opt.use_bf16_storage = net.opt.use_vulkan_compute = False
    net.opt.num_threads = 1
    if net.load_param(str(param)) or net.load_model(str(param.with_suffix(".bin"))):
        return
    given = np.load(param.with_suffix(".npz"))
    ex = net.create_extractor()
    keep = []
    for name in given:
        x = np.ascontiguousarray(given[name])
        keep.append(x)
        ex.input(name, ncnn.Mat(x.view(np.float32)).clone())
    found = {}
    for name in net.output_names():
        code, mat = ex.extract(name)
        if code:
            return
        found[name] = np.array(mat)
    np.savez(param.with_suffix(".out.npz"), **found)


for param in sorted(Path(sys.argv[1]).glob("*.param")):
    child = os.fork()
    if not child:
        run(param)
        os._exit(0)
    os.waitpid(child, 0)
