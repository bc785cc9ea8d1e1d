"""Makes kokoro.pth, kokoro.json and kokoro.bin: a Kokoro of random weights, a few thousand of them, and what PyPI's kokoro 0.9.4
computes of it: how long each phoneme is, and the sound. Widths that its classes have in them as numbers are made small; the
random numbers of the source are those of crates/voice/src/noise.rs.

    OMP_NUM_THREADS=1 python make_kokoro.py     (torch, transformers, kokoro 0.9.4 without its other requirements)
"""

import importlib.util
import json
import math
import re
import sys
import types
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
STYLE, HIDDEN, WIDE, TEXT, OUT = 8, 16, 24, 4, 16


PACKAGE = Path(importlib.util.find_spec("kokoro").submodule_search_locations[0])


def module(name, replace):
    text = (PACKAGE / f"{name}.py").read_text()
    for old, new in replace:
        assert re.search(old, text), (name, old)
        text = re.sub(old, new, text)
    made = types.ModuleType(f"kokoro.{name}")
    made.__package__ = "kokoro"
    sys.modules[made.__name__] = made
    exec(compile(text, name, "exec"), made.__dict__)
    return made


sys.modules["kokoro"] = types.ModuleType("kokoro")
module("custom_stft", [])
istftnet = module("istftnet", [(r"\b1024\b", str(WIDE)), (r"\b64\b", str(TEXT)), (r"\b512\b", str(HIDDEN))])
module("modules", [])
sys.modules["huggingface_hub"] = types.SimpleNamespace(hf_hub_download=None)
sys.modules["loguru"] = types.SimpleNamespace(logger=types.SimpleNamespace(debug=lambda *_: None))
model = module("model", [(r"\b128\b", str(STYLE))])


class Noise:
    """crates/voice/src/noise.rs"""

    def __init__(self, seed):
        self.state, self.spare = seed, None

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def uniform(self):
        return ((self.next() >> 11) + 1) / (1 << 53)

    def normal(self):
        if self.spare is not None:
            spare, self.spare = self.spare, None
            return spare
        radius, angle = math.sqrt(-2 * math.log(self.uniform())), 2 * math.pi * self.uniform()
        self.spare = radius * math.sin(angle)
        return radius * math.cos(angle)

    def like(self, shape):
        count = math.prod(shape)
        return torch.tensor([self.normal() for _ in range(count)], dtype=torch.float32).reshape(shape)


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    phonemes = "$;:,.!? abdefhijklmnopqstuvwxz"
    config = {
        "istftnet": {
            "upsample_kernel_sizes": [20, 12],
            "upsample_rates": [10, 6],
            "gen_istft_hop_size": 5,
            "gen_istft_n_fft": 20,
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
            "resblock_kernel_sizes": [3, 7],
            "upsample_initial_channel": OUT,
        },
        "dim_in": HIDDEN, "dropout": 0.2, "hidden_dim": HIDDEN, "max_dur": 6, "n_layer": 2, "n_mels": 80,
        "n_token": len(phonemes), "style_dim": STYLE, "text_encoder_kernel_size": 5,
        "plbert": {
            "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 40,
            "max_position_embeddings": 32, "num_hidden_layers": 3, "dropout": 0.1, "embedding_size": 12,
        },
        "vocab": {phoneme: index for index, phoneme in enumerate(phonemes) if index},
    }
    real_load = torch.load
    torch.load = lambda *_, **__: {}
    network = model.KModel(repo_id="hexgrad/Kokoro-82M", config=config, model="none").eval()
    torch.load = real_load
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("alpha") or ".alpha" in name:
                parameter.copy_(0.5 + torch.rand_like(parameter))
            elif "weight_v" in name or name.endswith("original1"):
                parameter.normal_(0, 1)
            elif "weight_g" in name or name.endswith("original0"):
                parameter.copy_(0.5 + 0.5 * torch.rand_like(parameter))
            elif "norm.weight" in name or "gamma" in name or "LayerNorm.weight" in name or "layer_norm.weight" in name:
                parameter.copy_(0.8 + 0.4 * torch.rand_like(parameter))
            elif parameter.dim() >= 2:
                parameter.normal_(0, 1 / math.sqrt(parameter[0].numel()))
            else:
                parameter.normal_(0, 0.1)
        network.predictor.F0_proj.bias.fill_(45.0)
        network.predictor.F0_proj.weight.mul_(40.0)
        network.predictor.duration_proj.linear_layer.weight.mul_(8.0)
        network.predictor.duration_proj.linear_layer.bias.sub_(1.0)
        network.decoder.generator.conv_post.bias[: 11].fill_(-2.0)
        # As numbers that a half has: the file is half as long.
        for parameter in network.parameters():
            parameter.copy_(parameter.half().float())
    states = {
        key: {f"module.{name}": value.half() for name, value in getattr(network, key).state_dict().items()
              if value.dtype == torch.float32}
        for key in ["bert", "bert_encoder", "predictor", "decoder", "text_encoder"]
    }
    # As files of before PyTorch 2 name what a weight norm is made of.
    for state in states.values():
        for name in list(state):
            if name.endswith("parametrizations.weight.original0"):
                state[name.replace("parametrizations.weight.original0", "weight_g")] = state.pop(name)
            elif name.endswith("parametrizations.weight.original1"):
                state[name.replace("parametrizations.weight.original1", "weight_v")] = state.pop(name)
    torch.save(states, HERE / "kokoro.pth")
    voices = (torch.randn(32, 1, 2 * STYLE) * 0.5).half().float()
    torch.save(voices, HERE / "kokoro_voice.pt")
    text = "hi, abide us!"
    noise = Noise(11)
    istftnet.torch = types.SimpleNamespace(**{**vars(torch), "randn_like": lambda x: noise.like(x.shape)})
    count = len([p for p in text if p in config["vocab"]])
    pitch = {}
    real_train = network.predictor.F0Ntrain
    def train(x, s):
        pitch["f0"], pitch["n"] = real_train(x, s)
        return pitch["f0"], pitch["n"]
    network.predictor.F0Ntrain = train
    # The first and the last frame are mirrored: what is imaginary in them is rounding, whose sign turns the angle half round.
    def transform(x):
        z = torch.view_as_real(torch.stft(x, 20, 5, 20, window=torch.hann_window(20), return_complex=True)).clone()
        z[..., 1][z[..., 1].abs() < 1e-5 * z[..., 0].abs()] = 0.0
        z = torch.view_as_complex(z)
        return torch.abs(z), torch.angle(z)
    network.decoder.generator.stft.transform = transform
    # Angles of thousands of turns in doubles: in floats they are off by more than the sounds that are compared.
    sines = network.decoder.generator.m_source.l_sin_gen
    steps = type(sines)._f02sine
    modulo = torch.Tensor.__mod__
    def in_doubles(f0):
        torch.Tensor.__mod__ = lambda x, y: modulo(x, y).double()
        try:
            return steps(sines, f0).float()
        finally:
            torch.Tensor.__mod__ = modulo
    sines._f02sine = in_doubles
    answer = network(text, voices[count - 1], speed=0.8, return_output=True)
    f0 = pitch["f0"].squeeze()
    print("pitch", f0.min(), f0.max(), (f0 > 10).float().mean(), (f0 - 10).abs().min())
    audio = answer.audio.numpy().astype("<f4")
    print("samples", audio.shape, np.abs(audio).max(), answer.pred_dur.tolist())
    curves = [pitch[name].squeeze().numpy().astype("<f4") for name in ["f0", "n"]]
    np.concatenate([*curves, audio]).tofile(HERE / "kokoro.bin")
    config["golden"] = {"phonemes": text, "speed": 0.8, "seed": 11, "frames": answer.pred_dur.tolist()}
    (HERE / "kokoro.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")


main()
