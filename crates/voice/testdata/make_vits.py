"""Makes what the tests of VITS compare with: for each case a tiny model of transformers' own class, of random weights, as the library saves
it, and the sound that the library makes of some signs, with the random numbers of crates/voice/src/noise.rs. `vits_piper.onnx` has
the weights of the first case as Piper's exporter names them, without the graph, which is never run here.

    OMP_NUM_THREADS=1 python make_vits.py     (torch, transformers, safetensors, onnx)
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import VitsConfig, VitsModel
from transformers.models.vits import modeling_vits

HERE = Path(__file__).parent
LETTERS = "_ abcdefghijklmnopqrstuvwxyz'-"
TEXT = "hi, abide us"
SEED = 11
SIZES = dict(
    vocab_size=len(LETTERS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, window_size=2, ffn_dim=24, ffn_kernel_size=3,
    flow_size=8, spectrogram_bins=9, prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=2, posterior_encoder_num_wavenet_layers=1,
    wavenet_kernel_size=5, depth_separable_num_layers=2, duration_predictor_num_flows=3, duration_predictor_flow_bins=6,
    duration_predictor_filter_channels=12, upsample_initial_channel=16, upsample_rates=[4, 3], upsample_kernel_sizes=[8, 6],
    resblock_kernel_sizes=[3, 5], sampling_rate=16000, noise_scale=0.6, noise_scale_duration=0.7,
)
CASES = {
    "vits": dict(resblock_dilation_sizes=[[1, 3], [1, 2]], wavenet_dilation_rate=1, speaking_rate=0.9),
    "vits_many": dict(resblock_dilation_sizes=[[1, 3], [1, 2]], wavenet_dilation_rate=2, num_speakers=3, speaker_embedding_size=5,
                      use_stochastic_duration_prediction=False),
}


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
        return torch.tensor([self.normal() for _ in range(math.prod(shape))], dtype=torch.float32).reshape(shape)


def randomize(network):
    for name, parameter in network.named_parameters():
        if name.endswith("original1"):
            parameter.normal_(0, 1)
        elif name.endswith("original0"):
            parameter.copy_(0.5 + 0.5 * torch.rand_like(parameter))
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_(0.8 + 0.4 * torch.rand_like(parameter))
        elif parameter.dim() >= 2 and "translate" not in name and "log_scale" not in name:
            parameter.normal_(0, 1.2 / math.sqrt(parameter[0].numel()))
        else:
            parameter.normal_(0, 0.2)
    network.decoder.conv_post.weight.mul_(0.2)
    # Signs last some frames.
    predictor = network.duration_predictor
    if hasattr(predictor, "flows"):
        predictor.flows[0].translate.copy_(torch.tensor([[-0.4], [0.3]]))
        for flow in predictor.flows[1:]:
            flow.conv_proj.weight.mul_(0.3)
    else:
        predictor.proj.bias.fill_(1.0)


def piper(network, path):
    import onnx
    from onnx import helper, numpy_helper

    def original(name):
        for a, b in [("text_encoder.embed_tokens", "enc_p.emb"), ("text_encoder.project", "enc_p.proj"), ("text_encoder.encoder", "enc_p.encoder"),
                     ("duration_predictor", "dp"), ("decoder.upsampler", "dec.ups"), ("decoder", "dec"), ("conv_dds", "convs"),
                     ("convs_dilated", "convs_sep"), ("convs_pointwise", "convs_1x1"), ("wavenet", "enc")]:
            name = name.replace(a, b)
        parts = name.split(".")
        if name.startswith("enc_p.encoder.layers."):
            layer, rest = parts[3], parts[4:]
            lists = {"attention": "attn_layers", "layer_norm": "norm_layers_1", "feed_forward": "ffn_layers", "final_layer_norm": "norm_layers_2"}
            rest = [{"q_proj": "conv_q", "k_proj": "conv_k", "v_proj": "conv_v", "out_proj": "conv_o"}.get(part, part) for part in rest]
            parts = ["enc_p", "encoder", lists[rest[0]], layer, *rest[1:]]
        if parts[:2] == ["dp", "flows"] and parts[2] != "0":
            parts[2] = str(2 * int(parts[2]) - 1)
        if parts[:2] == ["flow", "flows"]:
            parts[2] = str(2 * int(parts[2]))
        if parts[0] in ("dp", "flow"):
            parts = [{"conv_pre": "pre", "conv_proj": "proj", "conv_post": "post"}.get(part, part) for part in parts]
        name = ".".join(parts)
        if "norm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        return name.replace(".translate", ".m")

    state = {}
    for name, module in network.named_modules():
        if hasattr(module, "weight") and isinstance(module.weight, torch.Tensor):
            state[f"{name}.weight"] = module.weight.detach()
    state.update({name: value for name, value in network.state_dict().items() if "parametrizations" not in name})
    tensors = []
    for name, value in state.items():
        # What is there for training alone is not exported, nor the first flow of lengths, which changes nothing.
        if name.startswith("posterior_encoder") or ".post_" in name or ".flows.1." in name and name.startswith("duration"):
            continue
        if name.endswith("log_scale"):
            tensors.append(("/dp/flows.0/Exp_output_0", torch.exp(-value)))
            continue
        if any(part in name for part in [".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".out_proj.weight"]):
            value = value.unsqueeze(-1)
        tensors.append((original(name), value))
    initializers, nodes = [], []
    for name, value in tensors:
        numbers = value.contiguous().numpy()
        # Weights that a norm made have no names; the bias beside them does.
        if name.endswith(".weight") and ("in_layers" in name or "res_skip_layers" in name):
            nodes.append(helper.make_node("Conv", ["x", f"onnx::Conv_{len(nodes)}", name.replace(".weight", ".bias")], [f"y{len(nodes)}"]))
            name = f"onnx::Conv_{len(nodes) - 1}"
        initializers.append(numpy_helper.from_array(numbers, name))
    graph = helper.make_graph(nodes, "piper", [], [], initializers)
    onnx.save(helper.make_model(graph), path)


for name, more in CASES.items():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    config = VitsConfig(**SIZES, **more)
    network = VitsModel(config).eval()
    with torch.no_grad():
        randomize(network)
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    noise = Noise(SEED)
    modeling_vits.torch.randn, real = lambda *shape: noise.like(shape), torch.randn
    modeling_vits.torch.randn_like, real_like = lambda x: noise.like(x.shape), torch.randn_like
    # As the library's tokenizer: letters that it knows, a blank between them and around.
    ids = [0]
    for letter in TEXT:
        if letter in LETTERS:
            ids += [LETTERS.index(letter), 0]
    speaker = {} if config.num_speakers == 1 else {"speaker_id": 2}
    with torch.no_grad():
        answer = network(torch.tensor([ids]), **speaker)
    torch.randn, torch.randn_like = real, real_like
    audio = answer.waveform[0].numpy().astype("<f4")
    print(name, audio.shape, np.abs(audio).max(), audio.std())
    audio.tofile(folder / "golden.bin")
    state = {key: value.contiguous() for key, value in network.state_dict().items() if not key.startswith("posterior_encoder")}
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    settings = config.to_dict()
    settings["golden"] = {"text": TEXT, "seed": SEED, "ids": ids}
    (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(LETTERS)}) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_blank": True, "normalize": True, "phonemize": False, "is_uroman": False, "pad_token": "_", "language": "eng"}) + "\n")
    if name == "vits":
        piper(network, str(HERE / "vits_piper.onnx"))
