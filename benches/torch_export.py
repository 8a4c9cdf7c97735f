"""PyTorch's logits of an exported model, for the test of exports (crates/terrashard-trainer/tests/it/exports.rs).

Arguments: a folder with `model.py`, which has the network in plain PyTorch; the exported file, which that test leaves at the path in
TERRASHARD_KEEP_EXPORT. Prints what the test compares with: a JSON object of lists, for each map every value at the positions
`STEP * k` of the flattened map.

    TERRASHARD_KEEP_EXPORT=/tmp/export.safetensors cargo test -p terrashard-trainer --test it pytorch
    python benches/torch_export.py FOLDER /tmp/export.safetensors > crates/terrashard-trainer/tests/it/export_logits.json
"""

import json
import sys

import torch
from safetensors import safe_open

folder, export = sys.argv[1:]
sys.path.insert(0, folder)
import model as network  # noqa: E402

SIDE, STEP = 32, 1009

with safe_open(export, "pt") as file:
    architecture = json.loads(file.metadata()["terrashard.architecture"])
    state = {name: file.get_tensor(name) for name in file.keys()}
sizes = {key: architecture[key] for key in ("dims", "depths", "heads")}
net = network.S2S2Net({**sizes, "head": architecture["head_channels"], "bn": architecture["head_norm"] == "batch"})
net.load_state_dict(state)
net.eval()

c, y, x = torch.meshgrid(torch.arange(6), torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
image = ((37 * x + 91 * y + 13 * c) % 200).to(torch.float32) / 100 - 1
with torch.no_grad():
    head, _, segmentation, _, superres = net.tail.maps(net.features(image[None]))
maps = {"head": head, "segmentation": segmentation, "superres": superres}
print(json.dumps({name: values.flatten()[::STEP].tolist() for name, values in maps.items()}))
