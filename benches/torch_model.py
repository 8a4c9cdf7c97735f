"""PyTorch's side of `bench model`: the same network, weights and batch, forward and backward on the CPU.

Arguments: a folder with `model.py`, which has the network and its hash-made numbers; model; input height and width; samples;
threads; and `turns` or `step`.

turns: each line on standard input asks for one forward and backward; the answer is milliseconds of forward with the losses,
milliseconds of both, and the loss.
step: one training step with AdamW; the answer is the peak of the resident size above what it was before the network
existed, in bytes, and the loss.
"""

import sys
import time

import torch

folder, name, px, samples, threads, work = sys.argv[1:]
sys.path.insert(0, folder)
import model as network  # noqa: E402

torch.set_num_threads(int(threads))


def status(key):
    """A line of /proc/self/status in kB, as bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


before = status("VmRSS:")
net, _ = network.build(name, torch.device("cpu"))
batch = network.batch(int(px), range(int(samples)), torch.device("cpu"))
print(torch.__version__, torch.backends.cpu.get_cpu_capability(), flush=True)

if work == "step":
    optimizer = torch.optim.AdamW(net.parameters(), lr=6e-5, weight_decay=0.01, fused=True)
    loss = net(*batch)[0]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(status("VmHWM:") - before, loss.item(), flush=True)
else:
    for _ in sys.stdin:
        net.zero_grad()
        start = time.perf_counter()
        loss = net(*batch)[0]
        value = loss.item()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        print((middle - start) * 1e3, (end - start) * 1e3, value, flush=True)
        del loss
