"""Makes what the tests of Silero's network compare with: a tiny network of its shape with random weights, and how likely it takes speech to be
in each 32 ms of a sound. That the network below is Silero's is seen first: with the weights of its package it gives what the package's own graph
gives in onnxruntime, of a file of speech if one is named.

    pip install torch numpy silero-vad onnxruntime
    OMP_NUM_THREADS=1 python make_silero.py [speech.wav]     (16 kHz, one channel, 16 bits)
"""
import sys, wave
from pathlib import Path

import numpy as np, onnxruntime, silero_vad, torch
from torch import nn

HERE, DATA = Path(__file__).parent, Path(silero_vad.__file__).parent / "data"
CHUNK, BEFORE = 512, 64


class Silero(nn.Module):
    """As the package's `tinygrad_model.py` says."""

    def __init__(self, widths=(128, 64, 64, 128), hidden=128):
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        for at, (a, b, stride) in enumerate(zip((129, *widths), widths, (1, 2, 2, 1))):
            setattr(self, f"conv{at + 1}", nn.Conv1d(a, b, 3, stride=stride, padding=1))
        self.lstm_cell = nn.LSTMCell(widths[-1], hidden)
        self.final_conv = nn.Conv1d(hidden, 1, 1)

    def forward(self, x, state):
        x = self.stft_conv(nn.functional.pad(x, (0, 64), mode="reflect").unsqueeze(1))
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for at in range(1, 5): x = getattr(self, f"conv{at}")(x).relu()
        state = self.lstm_cell(x.squeeze(-1), state)
        return self.final_conv(state[0].unsqueeze(-1).relu()).sigmoid().mean(), state

    @torch.no_grad()
    def chances(self, samples):
        samples, state, out = torch.tensor(samples), None, []
        samples = nn.functional.pad(samples, (BEFORE, -len(samples) % CHUNK))
        for at in range(BEFORE, len(samples), CHUNK):
            chance, state = self(samples[None, at - BEFORE:at + CHUNK], state)
            out.append(float(chance))
        return np.array(out, "<f4")


def package(samples):
    model, out = silero_vad.load_silero_vad(onnx=True), []
    samples = nn.functional.pad(torch.tensor(samples), (0, -len(samples) % CHUNK))
    for at in range(0, len(samples), CHUNK): out.append(float(model(samples[at:at + CHUNK], 16000)))
    return np.array(out, "<f4")


def sound(samples):
    n = np.arange(samples, dtype=np.float64)
    voice = 0.3 * np.sin(0.05 * n + 3 * np.sin(0.0007 * n)) * (0.5 + 0.5 * np.sin(0.001 * n))
    noise = ((n * n * 7919) % 1000) / 1000 - 0.5
    return (voice + 0.05 * noise).astype(np.float32)


real = Silero().eval()
graph = list(torch.jit.load(DATA / "silero_vad.jit").state_dict().items())
names = [name for name, _ in graph if name.startswith("_model.")]
assert len(names) == len(real.state_dict())
real.load_state_dict({own: dict(graph)[name] for own, name in zip(real.state_dict(), names)})
for samples in [sound(30_000), *[np.frombuffer(wave.open(name).readframes(1 << 24), "<i2").astype(np.float32) / 32768 for name in sys.argv[1:]]]:
    own, right = real.chances(samples), package(samples)
    print(len(own), "chances, the largest", right.max(), "off by", np.abs(own - right).max())
    assert np.abs(own - right).max() < 1e-4

torch.manual_seed(3)
tiny = Silero((6, 5, 4, 6), 7).eval()
with torch.no_grad():
    for parameter in tiny.parameters(): parameter.normal_(0, 0.4)
    n, k = np.arange(256), np.arange(129)[:, None]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / 256)
    basis = np.concatenate([window * np.cos(2 * np.pi * k * n / 256), -window * np.sin(2 * np.pi * k * n / 256)])
    tiny.stft_conv.weight.copy_(torch.tensor(basis, dtype=torch.float32)[:, None])
    tiny.lstm_cell.bias_ih.mul_(0)
    tiny.final_conv.weight.mul_(8)
chances = tiny.chances(sound(30_000))
print(chances.min(), chances.max(), chances.std())
numbers = [value.numpy().astype("<f4").ravel() for name, value in tiny.state_dict().items() if not name.startswith("stft")]
(HERE / "silero.bin").write_bytes(b"".join(part.tobytes() for part in [*numbers, chances]))
