"""Makes the quantised checkpoints in this folder and what they compute.

    pip install torch transformers safetensors numpy 'mlx[cpu]' compressed-tensors bitsandbytes hqq
    python make_formats.py            # all, or: python make_formats.py mlx gptq

Each folder has a random Llama of one layer in one format, and `golden.safetensors`: `tokens`, and the `logits` of each that
transformers computes in float32 with the weights as the format's own library gives them back (MLX, compressed-tensors,
bitsandbytes, HQQ), or, for GPTQ, AWQ and the scaled floats, as the formula in torch says. The tokenizer is
tests/data/tiny/llama3's.
"""
import json, shutil, sys
from pathlib import Path

import mlx.core as mx, numpy as np, torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
mx.set_default_device(mx.cpu)
HIDDEN, INNER = 64, 128
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
TOKENS = [1, 77, 3, 150, 42, 9, 9, 120]
CONFIG = LlamaConfig(vocab_size=160, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                     max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
                     rope_parameters={"rope_type": "default", "rope_theta": 1e4}, attn_implementation="eager")


def make(name, convert, quantization, key="quantization_config", embedding=None):
    """`convert(name of a matrix, f32)` gives a dictionary of what follows its name, and the matrix as it comes back."""
    torch.manual_seed(sum(map(ord, name)))
    model = LlamaForCausalLM(CONFIG).float().eval()
    stored = {}
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if "norm" in parameter_name:
                p.copy_(1 + torch.round(torch.randn_like(p) * 8).clamp(-31, 31) / 64)
            else:
                p.copy_((torch.randn_like(p) * 0.15).bfloat16().float())
            module = parameter_name.removesuffix(".weight")
            how = convert if any(parameter_name.endswith(f"{linear}.weight") for linear in LINEAR) else embedding if "embed" in parameter_name else None
            if how is None:
                stored[parameter_name] = p.bfloat16()
                continue
            parts, back = how(module, p.data.clone())
            assert back.shape == p.shape and (back - p).abs().max() < 0.6, (name, parameter_name, (back - p).abs().max())
            p.copy_(back.float())
            stored |= {module + suffix: tensor.contiguous().clone() for suffix, tensor in parts.items()}
        logits = model(torch.tensor([TOKENS])).logits[0]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = json.loads(CONFIG.to_json_string(use_diff=False)) | {"architectures": ["LlamaForCausalLM"], key: quantization}
    keep = set("architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act max_position_embeddings "
               "rms_norm_eps bos_token_id eos_token_id tie_word_embeddings model_type rope_parameters".split()) | {key}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k in keep}, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
    save_file(stored, folder / "model.safetensors")
    save_file({"tokens": torch.tensor(TOKENS, dtype=torch.int32), "logits": logits}, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size} bytes")


# MLX: its own quantize and dequantize, in bfloat16 as its checkpoints are; bits and groups of their own in some modules.
def mlx(default, own):
    def convert(module, w):
        group, bits = next((of for end, of in own.items() if module.endswith(end)), default)
        packed, scales, biases = mx.quantize(mx.array(w.numpy()).astype(mx.bfloat16), group_size=group, bits=bits)
        back = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
        b16 = lambda x: torch.from_numpy(np.array(x.astype(mx.float32))).bfloat16()
        parts = {".weight": torch.from_numpy(np.array(packed)), ".scales": b16(scales), ".biases": b16(biases)}
        return parts, torch.from_numpy(np.array(back))
    return convert


def mlx_mxfp4(module, w):
    packed, scales = mx.quantize(mx.array(w.numpy()), group_size=32, bits=4, mode="mxfp4")
    back = mx.dequantize(packed, scales, group_size=32, bits=4, mode="mxfp4")
    parts = {".weight": torch.from_numpy(np.array(packed)), ".scales": torch.from_numpy(np.array(scales))}
    return parts, torch.from_numpy(np.array(back.astype(mx.float32)))


# A string of codes of some bits in 32-bit words along the first dimension, the lowest bits first.
def words(codes, bits):
    rows, cols = codes.shape
    stream = ((codes[:, None, :].astype(np.int64) >> np.arange(bits)[None, :, None]) & 1).reshape(rows * bits // 32, 32, cols)
    return torch.from_numpy((stream << np.arange(32)[None, :, None]).sum(1).astype(np.uint32).view(np.int32))


def affine_codes(w, bits, group, symmetric):
    """(out, in) -> codes, f16 scales (out, groups), zero points."""
    rows, cols = w.shape
    group = cols if group == -1 else group
    g = w.reshape(rows, cols // group, group).double()
    top = 2 ** bits - 1
    low, high = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high); low = -high
    scale = ((high - low) / top).half().double()
    zero = torch.full_like(scale, (top + 1) / 2) if symmetric else torch.round(-low / scale).clamp(0, top)
    codes = torch.clamp(torch.round(g / scale[..., None]) + zero[..., None], 0, top)
    back = ((codes - zero[..., None]) * scale[..., None]).reshape(rows, cols).float()
    return codes.reshape(rows, cols).numpy().astype(np.int64), scale.half(), zero.numpy().astype(np.int64), back


def gptq(bits, group, symmetric, version=1, ordered=True):
    def convert(module, w):
        if not ordered:  # as `desc_act`: groups are of inputs in another order
            order = torch.randperm(w.shape[1])
            parts, back = gptq(bits, group, symmetric, version)(module, w[:, order])
            codes = (parts[".qweight"].numpy().view(np.uint32)[:, None, :] >> (bits * np.arange(32 // bits))[None, :, None]) & (2 ** bits - 1)
            codes = codes.reshape(w.shape[1], -1)
            restored, g_idx, whole = np.zeros_like(codes), torch.zeros(w.shape[1], dtype=torch.int32), torch.zeros_like(w)
            restored[order.numpy()], g_idx[order], whole[:, order] = codes, parts[".g_idx"], back
            return parts | {".qweight": words(restored, bits), ".g_idx": g_idx}, whole
        codes, scale, zero, back = affine_codes(w, bits, group, symmetric)
        if version == 1: zero = (zero - 1) & (2 ** bits - 1)
        groups = scale.shape[1]
        parts = {".qweight": words(codes.T, bits), ".qzeros": words(zero, bits).T, ".scales": scale.T,
                 ".g_idx": torch.arange(w.shape[1], dtype=torch.int32) // (w.shape[1] // groups)}
        if bits == 3: parts[".bias"] = torch.zeros(w.shape[0], dtype=torch.float16)  # as GPTQ's first tools wrote
        return parts, back
    return convert


def awq(kind):
    def convert(module, w):
        codes, scale, zero, back = affine_codes(w, 4, 32, False)
        if kind == "gemv":
            pad = lambda x: np.pad(x, ((0, 0), (0, 8 - x.shape[1])))
            scales = torch.from_numpy(pad(scale.numpy()))
            return {".qweight": words(codes.T, 4).T, ".qzeros": words(pad(zero).T, 4).T, ".scales": scales}, back
        def pack(x):  # (_, out) with the outputs of a word in AWQ's order
            x = x.reshape(x.shape[0], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
            return torch.from_numpy((x << (4 * np.arange(8))).sum(-1).astype(np.uint32).view(np.int32))
        return {".qweight": pack(codes.T), ".qzeros": pack(zero.T), ".scales": scale.T}, back
    return convert


def compressed(scheme, scale_of):
    """compressed-tensors' own compressor and decompressor of a scheme; `scale_of(w)` gives what it needs besides."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    kind, weights = scheme
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry(kind)
    def convert(module, w):
        state = {"weight": w} | scale_of(w, scheme.weights)
        parts = compressor.compress(dict(state), scheme)
        back = compressor.decompress(dict(parts), scheme)["weight"]
        return {"." + k: v for k, v in parts.items()}, back.float()
    return convert


def int_scales(w, args):
    codes, scale, zero, back = affine_codes(w, args.num_bits, args.group_size or -1, args.symmetric)
    state = {"weight_scale": scale.float()}
    if not args.symmetric: state["weight_zero_point"] = torch.from_numpy(zero - 2 ** (args.num_bits - 1)).to(torch.int8)
    return state


def nv_scales(w, args):
    all_scale = torch.tensor([448.0 * 6.0 / w.abs().max().item()])
    scale = (w.reshape(w.shape[0], -1, 16).abs().amax(-1) / 6.0 * all_scale).to(torch.float8_e4m3fn).float()
    return {"weight_scale": scale, "weight_global_scale": all_scale}


def mx_scales(w, args):
    return {"weight_scale": 2.0 ** torch.ceil(torch.log2(w.reshape(w.shape[0], -1, 32).abs().amax(-1) / 6.0))}


def fp8(block, dtype=torch.float8_e4m3fn):
    """8-bit floats: one scale a block, a row or a matrix."""
    def convert(module, w):
        rows, cols = w.shape
        b = {"tensor": (rows, cols), "row": (1, cols)}.get(block, block)
        shape = (-(-rows // b[0]), -(-cols // b[1]))
        scale, back, q = torch.zeros(shape), torch.zeros_like(w), torch.zeros_like(w).to(dtype)
        for i in range(shape[0]):
            for j in range(shape[1]):
                at = np.s_[i * b[0]:(i + 1) * b[0], j * b[1]:(j + 1) * b[1]]
                scale[i, j] = w[at].abs().max() / torch.finfo(dtype).max
                q[at] = (w[at] / scale[i, j]).to(dtype)
                back[at] = q[at].float() * scale[i, j]
        if block == "tensor": return {".weight": q, ".weight_scale": scale.reshape(()), ".input_scale": torch.tensor(0.5)}, back
        return {".weight": q, ".weight_scale" if block == "row" else ".weight_scale_inv": scale}, back
    return convert


def nvfp4_modelopt(module, w):
    state = nv_scales(w, None)
    from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4, unpack_fp4_from_uint8
    packed = quantize_and_pack_fp4(w, state["weight_scale"], global_scale=state["weight_global_scale"], zero_point=None, group_size=16)
    scale_2 = 1.0 / state["weight_global_scale"]
    unpacked = unpack_fp4_from_uint8(packed, w.shape[0], w.shape[1]).float().reshape(w.shape[0], -1, 16)
    back = (unpacked * (state["weight_scale"] * scale_2)[..., None]).reshape(w.shape)
    return {".weight": packed, ".weight_scale": state["weight_scale"].to(torch.float8_e4m3fn), ".weight_scale_2": scale_2.reshape(())}, back


def bnb(kind, nested):
    def convert(module, w):
        from bitsandbytes import functional as F
        packed, state = F.quantize_4bit(w, quant_type=kind, blocksize=64, compress_statistics=nested)
        parts = {".weight": packed} | {".weight." + k: v for k, v in state.as_dict(packed=True).items()}
        return parts, F.dequantize_4bit(packed, state).float()
    return convert


def bnb_int8(module, w):
    scale = w.abs().amax(-1)
    q = torch.round(w * (127 / scale)[:, None]).to(torch.int8)
    return {".weight": q, ".SCB": scale, ".weight_format": torch.tensor(0, dtype=torch.uint8)}, q.float() * (scale / 127)[:, None]


def hqq(bits, group):
    def convert(module, w):
        from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        linear.weight.data = w.clone()
        made = HQQLinear(linear, BaseQuantizeConfig(nbits=bits, group_size=group, axis=1), compute_dtype=torch.float32, device="cpu")
        back = made.dequantize().float()
        return {"." + k: v for k, v in made.state_dict().items()}, back
    return convert


def ct(format, weights):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


def ints(bits, symmetric, group=None):
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel", "group_size": group}


FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MX4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MIXED = {"mlp.down_proj": (128, 6), "self_attn.v_proj": (32, 3), "embed_tokens": (32, 8), "mlp.up_proj": (64, 5)}
GPTQ = dict(quant_method="gptq", desc_act=False)
CASES = {
    "mlx-4": lambda n: make(n, mlx((64, 4), {}), {"group_size": 64, "bits": 4}, "quantization", mlx((64, 4), {})),
    "mlx-mixed": lambda n: make(n, mlx((64, 2), MIXED), {"group_size": 64, "bits": 2} | {
        f"model.layers.0.{k}" if "." in k else f"model.{k}": {"group_size": g, "bits": b} for k, (g, b) in MIXED.items()}, "quantization", mlx((64, 2), MIXED)),
    "mlx-mxfp4": lambda n: make(n, mlx_mxfp4, {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "quantization"),
    "gptq-4": lambda n: make(n, gptq(4, 32, False), GPTQ | {"bits": 4, "group_size": 32, "sym": False}),
    "gptq-2": lambda n: make(n, gptq(2, 32, False, 2), GPTQ | {"bits": 2, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"}),
    "gptq-3": lambda n: make(n, gptq(3, 64, True), GPTQ | {"bits": 3, "group_size": 64, "sym": True}),
    "gptq-order": lambda n: make(n, gptq(4, 32, False, ordered=False), GPTQ | {"bits": 4, "group_size": 32, "sym": False, "desc_act": True}),
    "gptq-8": lambda n: make(n, gptq(8, -1, True), {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 8, "group_size": -1, "sym": True}),
    "awq-gemm": lambda n: make(n, awq("gemm"), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}),
    "awq-gemv": lambda n: make(n, awq("gemv"), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv", "zero_point": True}),
    "compressed-4": lambda n: make(n, compressed(("pack-quantized", ints(4, False, 32)), int_scales), ct("pack-quantized", ints(4, False, 32))),
    "compressed-3": lambda n: make(n, compressed(("pack-quantized", ints(3, True, 32)), int_scales), ct("pack-quantized", ints(3, True, 32))),
    "compressed-int8": lambda n: make(n, compressed(("int-quantized", ints(8, True)), int_scales), ct("int-quantized", ints(8, True))),
    "compressed-nvfp4": lambda n: make(n, compressed(("nvfp4-pack-quantized", FP4), nv_scales), ct("nvfp4-pack-quantized", FP4)),
    "compressed-mxfp4": lambda n: make(n, compressed(("mxfp4-pack-quantized", MX4), mx_scales), ct("mxfp4-pack-quantized", MX4)),
    "compressed-fp8": lambda n: make(n, fp8("row"), ct("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"})),
    "fp8-blocks": lambda n: make(n, fp8((32, 48)), {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 48]}),
    "fp8-tensor": lambda n: make(n, fp8("tensor"), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "fp8-e5m2": lambda n: make(n, fp8("tensor", torch.float8_e5m2), {"quant_method": "fp8", "activation_scheme": "static"}),
    "modelopt-nvfp4": lambda n: make(n, nvfp4_modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "bnb-nf4": lambda n: make(n, bnb("nf4", True), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "bnb-fp4": lambda n: make(n, bnb("fp4", False), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "bnb-int8": lambda n: make(n, bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "hqq-4": lambda n: make(n, hqq(4, 64), {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}}),
    "hqq-2": lambda n: make(n, hqq(2, 32), {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2, "group_size": 32, "axis": 1}}}),
}

if __name__ == "__main__":
    for name, case in CASES.items():
        if len(sys.argv) < 2 or any(name.startswith(wanted) for wanted in sys.argv[1:]):
            case(name)
