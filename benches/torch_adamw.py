"""Times PyTorch's AdamW on the CPU for `bench host-adam`.

Arguments: parameters, threads. Each line on standard input names an implementation and a number of steps; the answer is
the time of the fastest of them in milliseconds. All work on the same parameter and states; `fused_copy` also writes the
parameter to a bf16 copy.
"""

import sys
import time

import torch

size, threads = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
parameter = torch.full((size,), 0.5)
parameter.grad = torch.full((size,), 1e-3)
fused = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, fused=True)
foreach = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, foreach=True)
fused.step()
foreach.state[parameter] = fused.state[parameter]
copy = torch.zeros(size, dtype=torch.bfloat16)


def fused_copy():
    fused.step()
    copy.copy_(parameter)


work = {"fused": fused.step, "foreach": foreach.step, "fused_copy": fused_copy}
print(torch.__version__, torch.backends.cpu.get_cpu_capability(), flush=True)
for line in sys.stdin:
    name, steps = line.split()
    best = float("inf")
    for _ in range(int(steps)):
        start = time.perf_counter()
        work[name]()
        best = min(best, time.perf_counter() - start)
    print(best * 1e3, flush=True)
