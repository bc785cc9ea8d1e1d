"""Makes the files of weights beside it with torch.save: tiny state_dicts, and what they hold as values.json.

    pip install torch numpy safetensors
    python make.py

    zip.bin      as torch.save writes since 1.6
    legacy.bin   the same tensors as it wrote before
    bool.bin, bool-legacy.bin, transposed.bin   a mask beside weights, and numbers that do not lie one after the other
    called.bin, list.bin   what is refused: a pickle that calls a name, and no dictionary
    bert-mean.bin, bert-cls-dense.bin, dense.bin   the weights of ../encoders/bert-mean, of bert-cls-dense and of its 2_Dense
"""
import json, os
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
whole = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 8 - 1
STATE = {
    "encoder.weight": whole, "encoder.rows": whole[1:3], "half": (whole / 4).half(), "brain": whole[:1].bfloat16(), "double": whole[0, :3].double(),
    "encoder.bias": torch.nn.Parameter(torch.tensor([0.5, -2.25, 3.0])), "ids": torch.arange(5)[None], "bytes": torch.tensor([-1, 7], dtype=torch.int8),
    "scalar": torch.tensor(2.5), "one.row": torch.ones(1, 4)[:, :], "名": torch.tensor([1.0]),
}


def ordered(state):
    from collections import OrderedDict
    out = OrderedDict(state)
    out._metadata = OrderedDict([("", {"version": 1})])
    return out


torch.save(ordered(STATE), HERE / "zip.bin")
torch.save(ordered(STATE), HERE / "legacy.bin", _use_new_zipfile_serialization=False)
torch.save({"mask": torch.tensor([True, False]), "weight": whole}, HERE / "bool.bin")
torch.save({"mask": torch.tensor([True, False]), "weight": whole}, HERE / "bool-legacy.bin", _use_new_zipfile_serialization=False)
torch.save({"weight": whole.T}, HERE / "transposed.bin")
torch.save({"weight": whole, "path": os.getcwd, "call": Path("x")}, HERE / "called.bin")
torch.save([whole], HERE / "list.bin")
values = {name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "values": t.double().flatten().tolist()} for name, t in STATE.items()}
(HERE / "values.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
for name, folder in [("bert-mean", "bert-mean"), ("bert-cls-dense", "bert-cls-dense"), ("dense", "bert-cls-dense/2_Dense")]:
    torch.save(load_file(HERE.parent / "encoders" / folder / "model.safetensors"), HERE / f"{name}.bin")
