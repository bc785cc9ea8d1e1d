"""Makes the quantised checkpoints in this folder and what they compute.

    pip install torch transformers safetensors numpy 'mlx[cpu]' compressed-tensors bitsandbytes hqq optimum-quanto ninja torchao
    pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1    # read only: AUTOAWQ and AUTOGPTQ name the unpacked folders
    python make_formats.py            # all, or: python make_formats.py mlx gptq, which are beginnings of names

Each folder has a random Llama of one layer in one format, and `golden.safetensors`: `tokens`, and the `logits` of each that
transformers computes in float32 with the weights as the format's own library gives them back (MLX, compressed-tensors,
bitsandbytes, HQQ, Quanto, TorchAO), or, for GPTQ, AWQ and the scaled floats, as the formula in torch says; what AutoAWQ and
AutoGPTQ lay out for one kernel is packed by their own code. TorchAO's tiles are laid out as PyTorch's int4mm.cu does. Folders
that begin with bert- have an encoder of one layer instead, whose `hidden` states are golden. The tokenizer is
tests/data/tiny/llama3's.
"""
import importlib.util, json, os, shutil, sys, types
from pathlib import Path

import numpy as np, torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
HIDDEN, INNER = 64, 128
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
TOKENS = [1, 77, 3, 150, 42, 9, 9, 120]
CONFIG = LlamaConfig(vocab_size=160, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                     max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, rms_norm_eps=1e-5,
                     rope_parameters={"rope_type": "default", "rope_theta": 1e4}, attn_implementation="eager")


BERT = BertConfig(vocab_size=160, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=32,
                  attn_implementation="eager")
BERT_LINEAR = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def make(name, convert, quantization, key="quantization_config", embedding=None, kept=(), heads=2):
    """`convert(name of a matrix, f32)` gives a dictionary of what follows its name, and the matrix as it comes back; modules
    whose names end as one of `kept` stay as they are."""
    torch.manual_seed(sum(map(ord, name)))
    is_bert = name.startswith("bert-")
    settings = BERT if is_bert else LlamaConfig(**CONFIG.to_dict() | {"num_key_value_heads": heads})
    model = (BertModel(settings, add_pooling_layer=False) if is_bert else LlamaForCausalLM(settings)).float().eval()
    linear = BERT_LINEAR if is_bert else LINEAR
    stored = {}
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if "norm" in parameter_name.lower() or parameter_name.endswith("bias"):
                p.copy_((0 if "bias" in parameter_name else 1) + torch.round(torch.randn_like(p) * 8).clamp(-31, 31) / 64)
            else:
                p.copy_((torch.randn_like(p) * 0.15).bfloat16().float())
            module = parameter_name.removesuffix(".weight")
            how = convert if any(parameter_name.endswith(f"{end}.weight") for end in linear) else embedding if "embed_tokens" in parameter_name else None
            if how is None or any(module.endswith(end) for end in kept):
                stored[parameter_name] = p.bfloat16()
                continue
            parts, back = how(module, p.data.clone())
            assert back.shape == p.shape and (back - p).abs().max() < 0.6, (name, parameter_name, (back - p).abs().max())
            p.copy_(back.float())
            stored |= {module + suffix: tensor.contiguous().clone() for suffix, tensor in parts.items()}
        ids = torch.tensor([TOKENS])
        golden = {"hidden": model(ids).last_hidden_state[0]} if is_bert else {"logits": model(ids).logits[0]}
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = json.loads(settings.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}
    keep = set("architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act max_position_embeddings "
               "rms_norm_eps bos_token_id eos_token_id tie_word_embeddings model_type rope_parameters type_vocab_size layer_norm_eps pad_token_id".split())
    config = {k: v for k, v in config.items() if k in keep and not (k == "pad_token_id" and not is_bert)}
    if key.endswith(".json"):
        (folder / key).write_text(json.dumps(quantization, indent=1) + "\n")
    else:
        config[key] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
    save_file(stored, folder / "model.safetensors")
    save_file({"tokens": torch.tensor(TOKENS, dtype=torch.int32)} | golden, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size} bytes")


# MLX: its own quantize and dequantize, in bfloat16 as its checkpoints are; bits and groups of their own in some modules.
def mlx(default, own):
    def convert(module, w):
        import mlx.core as mx
        mx.set_default_device(mx.cpu)
        group, bits = next((of for end, of in own.items() if module.endswith(end)), default)
        packed, scales, biases = mx.quantize(mx.array(w.numpy()).astype(mx.bfloat16), group_size=group, bits=bits)
        back = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
        b16 = lambda x: torch.from_numpy(np.array(x.astype(mx.float32))).bfloat16()
        parts = {".weight": torch.from_numpy(np.array(packed)), ".scales": b16(scales), ".biases": b16(biases)}
        return parts, torch.from_numpy(np.array(back))
    return convert


def mlx_floats(mode, group, bits):
    def convert(module, w):
        import mlx.core as mx
        mx.set_default_device(mx.cpu)
        packed, scales = mx.quantize(mx.array(w.numpy()), group_size=group, bits=bits, mode=mode)
        back = mx.dequantize(packed, scales, group_size=group, bits=bits, mode=mode)
        parts = {".weight": torch.from_numpy(np.array(packed)), ".scales": torch.from_numpy(np.array(scales))}
        return parts, torch.from_numpy(np.array(back.astype(mx.float32)))
    return convert


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


def without(suffix, made):
    return {k: v for k, v in made[0].items() if k != suffix}, made[1]


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


def source(variable, path):
    """A module of a library whose package does not import without its device: `path` below the folder in `variable`."""
    awq, utils, module = types.ModuleType("awq"), types.ModuleType("awq.utils"), types.ModuleType("awq.utils.module")
    module.try_import = lambda name: (None, "not there")
    sys.modules |= {"awq": awq, "awq.utils": utils, "awq.utils.module": module}
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(os.environ[variable]) / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def linear_of(w):
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    return linear


def awq_gemv_fast(module, w):
    codes, scale, zero, back = affine_codes(w, 4, 32, False)
    kernel = source("AUTOAWQ", "awq/modules/linear/gemv_fast.py")
    made = kernel.WQLinear_GEMVFast.from_linear(linear_of(back), 4, 32, scales=scale.float(), zeros=torch.from_numpy(zero).float())
    # Its kernel adds the products of scales and zero points as they are stored, in F16.
    spread = lambda x: x.float().T[:, :scale.shape[1]].repeat_interleave(32, 1)
    back = torch.from_numpy(codes).float() * spread(made.scales) + spread(made.qzeros)
    return {".qweight": made.qweight, ".qzeros": made.qzeros, ".scales": made.scales}, back


def awq_marlin(module, w):
    codes, scale, zero, back = affine_codes(w, 4, 32, True)
    kernel = source("AUTOAWQ", "awq/modules/linear/marlin.py")
    made = kernel.WQLinear_Marlin.from_linear(linear_of(back), 4, 32, scales=scale.float())
    return {".qweight": made.qweight, ".scales": made.scales}, back


def gptq_marlin(module, w):
    codes, scale, zero, back = affine_codes(w, 4, -1, True)
    kernel = source("AUTOGPTQ", "auto_gptq/nn_modules/qlinear/qlinear_marlin.py")
    made = kernel.QuantLinear.__new__(kernel.QuantLinear)
    torch.nn.Module.__init__(made)
    made.bits, made.group_size, made.infeatures, made.outfeatures = 4, w.shape[1], w.shape[1], w.shape[0]
    made.register_buffer("B", torch.zeros((w.shape[1] // 16, w.shape[0] * 2), dtype=torch.int32))
    made.register_buffer("s", torch.zeros((1, w.shape[0]), dtype=torch.float16))
    made.bias = None
    made.pack(linear_of(back.half()).half(), scale)
    return {".B": made.B, ".s": made.s}, back


def quanto(kind, group):
    def convert(module, w):
        from optimum.quanto import AbsmaxOptimizer, MaxOptimizer, qint2, qint4, qint8, qfloat8_e4m3fn, quantize_weight
        of = qint2 if kind == 4 and module.endswith("v_proj") else {2: qint2, 4: qint4, 8: qint8, "f8": qfloat8_e4m3fn}[kind]
        if of.bits == 8:
            made = quantize_weight(w, of, 0, AbsmaxOptimizer()(w, of, 0))
        else:
            scale, shift = MaxOptimizer()(w, of, 0, group)
            made = quantize_weight(w, of, 0, scale, shift, group_size=group)
        parts = {}
        made.save_to_state_dict(parts, "", False)
        return {".weight." + k: v for k, v in parts.items()} | {".input_scale": torch.ones(()), ".output_scale": torch.ones(())}, made.dequantize().float()
    return convert


def torchao(config):
    """TorchAO's own tensors, as transformers saves them."""
    def convert(module, w):
        import torchao.quantization as q
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        linear = torch.nn.Sequential(linear_of(w.bfloat16()))
        q.quantize_(linear, config(q))
        tensors, _ = flatten_tensor_state_dict(linear.state_dict())
        weight = linear[0].weight
        back = type(weight).dequantize(weight).float()
        if hasattr(weight, "zero_point"):  # what it says itself is rounded to BF16
            scale = weight.scale.float().reshape(w.shape[0], -1, 1)
            back = ((weight.qdata.float().reshape(*scale.shape[:2], -1) - weight.zero_point.float().reshape(scale.shape)) * scale).reshape(w.shape)
        elif hasattr(weight, "scale"):
            back = weight.qdata.float() * weight.scale.float()
        assert (back - type(weight).dequantize(weight).float()).abs().max() < 0.01
        return {k.removeprefix("0"): v for k, v in tensors.items()}, back
    return convert


def torchao_int4(module, w):
    """Int4Tensor, whose quantiser wants a device: FBGEMM's formula, given back by TorchAO's."""
    from torchao.prototype.gptq.api import _int4_row_dequantize_zp, _int4_row_quantize_zp_precomputed_qparams
    g = w.reshape(w.shape[0], -1, 32)
    scale = ((g.amax(-1) - g.amin(-1)) / 15).bfloat16().float()
    zero = (g.amin(-1) + 8 * scale).bfloat16().float()
    scale, zero = scale.T.contiguous(), zero.T.contiguous()
    q = _int4_row_quantize_zp_precomputed_qparams(w, scale, zero, 32)
    packed = (q[:, ::2] & 15) | (q[:, 1::2] << 4)
    parts = {"._weight_qdata": packed, "._weight_scale": scale.bfloat16(), "._weight_zero_point": zero.bfloat16()}
    return parts, _int4_row_dequantize_zp(q, scale, zero, 32)


def torchao_tiles(module, w):
    """Int4TilePackedTo4dTensor: codes and zeros by TorchAO, tiles as PyTorch's kernel for them has them, thread by thread."""
    from torchao.quantization import quant_primitives as q
    block = (1, 32)
    scale, zero = q._choose_qparams_affine_tinygemm(w, q.MappingType.ASYMMETRIC, block, torch.int32, 0, 15, scale_dtype=torch.bfloat16, zero_point_dtype=torch.bfloat16)
    codes = q._quantize_affine_tinygemm(w.bfloat16(), block, scale, zero, torch.int32, 0, 15)
    inner = 8 if w.shape[1] % 128 == 0 else 4
    tiles = np.zeros((w.shape[0] // 8, w.shape[1] // (16 * inner), 32, inner // 2), dtype=np.uint32)
    for n_tile, k_tile, thread, pair in np.ndindex(tiles.shape):
        base = (k_tile * inner + 2 * pair) * 16 + thread % 4 * 2
        at = [base, base + 1, base + 8, base + 9, base + 16, base + 17, base + 24, base + 25]
        v = codes[n_tile * 8 + thread // 4, at].numpy().astype(np.uint32)
        tiles[n_tile, k_tile, thread, pair] = v[7] << 28 | v[5] << 24 | v[3] << 20 | v[1] << 16 | v[6] << 12 | v[4] << 8 | v[2] << 4 | v[0]
    scale, zero = scale.reshape(w.shape[0], -1), zero.reshape(w.shape[0], -1)
    back = ((codes.reshape(*scale.shape, 32) - 8) * scale.float()[..., None] + zero.float()[..., None]).reshape(w.shape)
    check = q._dequantize_affine_tinygemm(codes, block, scale, zero, torch.int32, 0, 15, output_dtype=torch.float32)
    assert (check - back).abs().max() < 0.02
    pairs = torch.stack([scale, zero], -1).transpose(0, 1)
    return {"._weight_qdata": torch.from_numpy(tiles.view(np.int32)), "._weight_scale_and_zero": pairs}, back


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


def mx8_scales(w, args):
    return {"weight_scale": 2.0 ** (torch.floor(torch.log2(w.reshape(w.shape[0], -1, 32).abs().amax(-1))) - 8)}


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


def mxfp8(name, dtype=torch.uint8):
    """8-bit floats with a power of two for each 32, whose exponent is stored."""
    def convert(module, w):
        groups = w.reshape(w.shape[0], -1, 32)
        exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 8
        q = (groups / 2.0 ** exponents[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = (exponents + 127).to(torch.uint8)
        return {".weight": q.reshape(w.shape), name: stored.view(dtype)}, (q.float() * 2.0 ** exponents[..., None]).reshape(w.shape)
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


def hqq(bits, group, axis=1):
    def convert(module, w):
        from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
        made = HQQLinear(linear_of(w), BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis), compute_dtype=torch.float32, device="cpu")
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
MX8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MIXED = {"mlp.down_proj": (128, 6), "self_attn.v_proj": (32, 3), "embed_tokens": (32, 8), "mlp.up_proj": (64, 5)}
HQQ = {"quant_method": "hqq", "quant_config": {}}
AO = {"quant_method": "torchao", "quant_type": {"default": {}}}
GPTQ = dict(quant_method="gptq", desc_act=False)
CASES = {
    "mlx-4": lambda n: make(n, mlx((64, 4), {}), {"group_size": 64, "bits": 4}, "quantization", mlx((64, 4), {})),
    "mlx-mixed": lambda n: make(n, mlx((64, 2), MIXED), {"group_size": 64, "bits": 2} | {
        f"model.layers.0.{k}" if "." in k else f"model.{k}": {"group_size": g, "bits": b} for k, (g, b) in MIXED.items()}, "quantization", mlx((64, 2), MIXED)),
    "mlx-mxfp8": lambda n: make(n, mlx_floats("mxfp8", 32, 8), {"group_size": None, "bits": None, "mode": "mxfp8"}, "quantization", mlx_floats("mxfp8", 32, 8)),
    "mlx-nvfp4": lambda n: make(n, mlx_floats("nvfp4", 16, 4), {"group_size": 16, "bits": 4, "mode": "nvfp4"}, "quantization"),
    "mlx-mxfp4": lambda n: make(n, mlx_floats("mxfp4", 32, 4), {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "quantization"),
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
    "compressed-mxfp8": lambda n: make(n, compressed(("mxfp8-quantized", MX8), mx8_scales), ct("mxfp8-quantized", MX8)),
    "modelopt-mxfp8": lambda n: make(n, mxfp8(".weight_scale"), {"quant_method": "modelopt", "quant_algo": "MXFP8"}),
    "fp8-exponents": lambda n: make(n, mxfp8(".weight_scale_inv", torch.float8_e8m0fnu), {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
    "round-fp8-block": lambda n: make(n, fp8((32, 64)), {"quant_method": "auto-round", "packing_format": "auto_round:fp8", "data_type": "fp", "bits": 8, "group_size": [32, 64], "act_bits": 8}),
    "compressed-fp8": lambda n: make(n, fp8("row"), ct("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"})),
    "fp8-blocks": lambda n: make(n, fp8((32, 48)), {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 48]}),
    "fp8-tensor": lambda n: make(n, fp8("tensor"), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "fp8-e5m2": lambda n: make(n, fp8("tensor", torch.float8_e5m2), {"quant_method": "fp8", "activation_scheme": "static"}),
    "modelopt-nvfp4": lambda n: make(n, nvfp4_modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "bnb-nf4": lambda n: make(n, bnb("nf4", True), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "bnb-fp4": lambda n: make(n, bnb("fp4", False), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "bnb-int8": lambda n: make(n, bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "hqq-4": lambda n: make(n, hqq(4, 64), {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}}),
    "hqq-1": lambda n: make(n, hqq(1, 32), HQQ),
    "hqq-3": lambda n: make(n, hqq(3, 64), HQQ),
    "hqq-5": lambda n: make(n, hqq(5, 32), HQQ),
    "hqq-across": lambda n: make(n, lambda module, w: hqq(3 if "mlp" in module else 4, 256 if "gate" in module else 64, 0)(module, w), HQQ),
    "gptq-modules": lambda n: make(n, lambda module, w: without(".g_idx", gptq(8 if "v_proj" in module else 4, 32, False)(module, w)),
        GPTQ | {"bits": 4, "group_size": 32, "sym": False, "dynamic": {"+:.*v_proj": {"bits": 8}, "-:.*k_proj": {}}}, kept=["k_proj"]),
    "gptq-marlin": lambda n: make(n, gptq_marlin, GPTQ | {"bits": 4, "group_size": -1, "sym": True, "checkpoint_format": "marlin", "is_marlin_format": True}, heads=4),
    "awq-marlin": lambda n: make(n, awq_marlin, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "marlin", "zero_point": False}, heads=4),
    "awq-gemv-fast": lambda n: make(n, awq_gemv_fast, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast", "zero_point": True,
        "modules_to_not_convert": ["o_proj"]}, kept=["o_proj"]),
    "quanto-4": lambda n: make(n, quanto(4, 32), {"model.layers.0.mlp.up_proj": {"weights": "qint4", "activations": "none"}}, "quanto_qmap.json"),
    "quanto-8": lambda n: make(n, quanto(8, None), {"model.layers.0.mlp.up_proj": {"weights": "qint8", "activations": "none"}}, "quanto_qmap.json"),
    "torchao-int8": lambda n: make(n, torchao(lambda q: q.Int8WeightOnlyConfig()), AO, kept=["o_proj"]),
    "torchao-intx": lambda n: make(n, torchao(lambda q: q.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=q.PerGroup(32))), AO),
    "torchao-fp8": lambda n: make(n, torchao(lambda q: q.Float8WeightOnlyConfig()), AO),
    "torchao-int4": lambda n: make(n, torchao_int4, AO),
    "torchao-tiles": lambda n: make(n, torchao_tiles, AO),
    "bert-gptq": lambda n: make(n, gptq(4, 32, False), GPTQ | {"bits": 4, "group_size": 32, "sym": False}),
    "bert-awq": lambda n: make(n, awq("gemm"), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}),
    "bert-bnb-nf4": lambda n: make(n, bnb("nf4", True), {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "bert-fp8": lambda n: make(n, fp8("row"), ct("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}), kept=["intermediate.dense"]),
    "hqq-2": lambda n: make(n, hqq(2, 32), {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2, "group_size": 32, "axis": 1}}}),
}

if __name__ == "__main__":
    for name, case in CASES.items():
        if len(sys.argv) < 2 or any(name.startswith(wanted) for wanted in sys.argv[1:]):
            case(name)
