"""Makes the tiny checkpoints in tests/data/tiny and what the transformers library computes with them.

    pip install torch transformers safetensors gguf numpy tokenizers
    python make_golden.py            # all cases, or: python make_golden.py qwen3 mistral

Each folder holds one random model twice, `model.safetensors` (bf16, with config and tokenizer; names as the library
itself saves them) and `model.gguf` (the same numbers, with llama's query and key rows permuted and experts stacked as
the llama.cpp converter does; not for layers of both kinds and for windows in some, which GGUF's qwen3moe and qwen3 cannot say), and `golden.safetensors`: `prompt` and `greedy` token ids (32 greedy tokens after the prompt) and `logits`, one row for
every token of prompt and greedy but the last, computed in float32.

Every weight is a multiple of 1/512 below 1/2 (norms: of 1/64, around 1), so that F32, F16 and BF16 hold it exactly
and one set of golden values serves all three. Seeds are searched for a greedy path whose best two logits are never
close, so that rounding cannot change it, and which is not one token over and over; and for routers whose last expert
chosen and first not chosen are never close either.
"""
import json, sys, tempfile
from pathlib import Path

import gguf, numpy as np, torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, CONFIG_MAPPING

HERE = Path(__file__).parent / "tiny"
VOCAB, PROMPT, GREEDY, MARGIN, VARIETY, ROUTER_MARGIN = 160, 24, 32, 0.05, 10, 0.003
BASE = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=96, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, attn_implementation="eager")

CASES = {
    # Heads wider than hidden / heads, q/k norms, tied.
    "qwen3": dict(model_type="qwen3", head_dim=32, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    # Llama 3.1's scaling with an original context so short that slow, middle and fast frequencies all occur; tied.
    "llama3": dict(model_type="llama", head_dim=32, tie_word_embeddings=True, rms_norm_eps=1e-5,
                   rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    # Linear scaling, biases on all four attention projections, untied.
    "llama-linear": dict(model_type="llama", tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-5, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    # Query, key and value biases, YaRN, untied.
    "qwen2-yarn": dict(model_type="qwen2", tie_word_embeddings=False, rms_norm_eps=1e-6, use_sliding_window=False,
                       rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}),
    # A window shorter than the text, untied.
    "mistral": dict(model_type="mistral", tie_word_embeddings=False, sliding_window=10, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    # A window in three of four layers, tied.
    "qwen3-windows": dict(model_type="qwen3", head_dim=32, num_hidden_layers=4, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, use_sliding_window=True,
                          sliding_window=12, layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]),
    # Experts in every layer, weights that add up to 1, untied.
    "qwen3-moe": dict(model_type="qwen3_moe", head_dim=32, tie_word_embeddings=False, rms_norm_eps=1e-6, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
                      rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    # Experts in the middle layer alone, weights that do not add up to 1, tied.
    "qwen3-moe-mixed": dict(model_type="qwen3_moe", head_dim=32, num_hidden_layers=3, tie_word_embeddings=True, intermediate_size=48, rms_norm_eps=1e-6, num_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=24, norm_topk_prob=False, decoder_sparse_step=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    # Experts, untied.
    "mixtral": dict(model_type="mixtral", tie_word_embeddings=False, intermediate_size=40, rms_norm_eps=1e-5, num_local_experts=5, num_experts_per_tok=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
}
GGUF_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}


def build(case, seed):
    torch.manual_seed(seed)
    settings = BASE | case
    config = CONFIG_MAPPING[settings.pop("model_type")](**settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name: p.copy_(1 + torch.round(torch.randn_like(p) * 8).clamp(-31, 31) / 64)
            else: p.copy_(torch.round(torch.randn_like(p) * spread(name) * 512).clamp(-255, 255) / 512)
    return config, model


def spread(name):
    """Standard deviation of a matrix's weights. Experts' are larger: each counts for less than a whole MLP."""
    if "experts" in name: return 0.3 if "down_proj" in name else 0.2
    return 0.2 if "o_proj" in name or "down_proj" in name else 0.12


@torch.no_grad()
def run(model, seed):
    ids = torch.randint(3, VOCAB, (1, PROMPT), generator=torch.Generator().manual_seed(seed))
    for _ in range(GREEDY):
        best = model(ids, use_cache=False).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < MARGIN: return None
        ids = torch.cat([ids, best.indices[:1].view(1, 1)], dim=1)
    if len(set(ids[0, PROMPT:].tolist())) < VARIETY: return None
    out = model(ids[:, :-1], use_cache=False, **({"output_router_logits": True} if hasattr(model.config, "num_experts_per_tok") else {}))
    for scores in getattr(out, "router_logits", None) or ():
        used = model.config.num_experts_per_tok
        best = scores.topk(used + 1).values
        if (best[:, used - 1] - best[:, used]).min() < ROUTER_MARGIN: return None
    return ids[0], out.logits[0].float()


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
              "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
EXPERT_NAMES = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps", "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def gguf_name(name):
    if name == "model.embed_tokens.weight": return "token_embd.weight"
    if name == "model.norm.weight": return "output_norm.weight"
    if name == "lm_head.weight": return "output.weight"
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def stacked_experts(weights):
    """Each layer's experts as one tensor for each of their three matrices, under GGUF's names."""
    stacks = {}
    for key, tensor in weights.items():
        if ".experts." not in key: continue
        _, _, layer, _, _, expert, part, _ = key.split(".")
        stacks.setdefault(f"blk.{layer}.{EXPERT_NAMES[part]}.weight", {})[int(expert)] = tensor.numpy()
    return {name: np.stack([experts[e] for e in range(len(experts))]) for name, experts in stacks.items()}


def permuted(a, heads):
    """Rows of each head from halves to neighbours: llama's rope in GGUF turns elements 2i and 2i + 1."""
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def llama3_factors(config):
    """What the converter stores as rope_freqs.weight: the divisor of each frequency."""
    r, dim = config.rope_parameters, config.head_dim
    low, high, old = r["low_freq_factor"], r["high_freq_factor"], r["original_max_position_embeddings"]
    factors = []
    for freq in 1.0 / (r["rope_theta"] ** (np.arange(0, dim, 2) / dim)):
        wavelen = 2 * np.pi / freq
        if wavelen < old / high: factors.append(1.0)
        elif wavelen > old / low: factors.append(r["factor"])
        else:
            smooth = (old / wavelen - low) / (high - low)
            factors.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_gguf(path, name, config, weights):
    arch = GGUF_ARCHITECTURES.get(config.model_type, config.model_type)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    g = gguf.GGUFWriter(path, arch)
    g.add_type("model"); g.add_name(f"tiny-{name}"); g.add_license("apache-2.0"); g.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    g.add_context_length(config.max_position_embeddings); g.add_embedding_length(config.hidden_size); g.add_block_count(config.num_hidden_layers); g.add_feed_forward_length(config.intermediate_size)
    g.add_head_count(config.num_attention_heads); g.add_head_count_kv(config.num_key_value_heads); g.add_key_length(head_dim); g.add_value_length(head_dim)
    g.add_layer_norm_rms_eps(config.rms_norm_eps); g.add_rope_freq_base(config.rope_parameters["rope_theta"]); g.add_vocab_size(VOCAB)
    rope = config.rope_parameters
    if rope["rope_type"] == "linear":
        g.add_rope_scaling_type(gguf.RopeScalingType.LINEAR); g.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        g.add_rope_scaling_type(gguf.RopeScalingType.YARN); g.add_rope_scaling_factor(rope["factor"]); g.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.model_type == "mistral": g.add_sliding_window(config.sliding_window)
    if hasattr(config, "num_experts_per_tok"): g.add_expert_count(config.num_local_experts); g.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"): g.add_expert_feed_forward_length(config.moe_intermediate_size)
    g.add_tokenizer_model("gpt2"); g.add_tokenizer_pre("default"); g.add_token_list(vocabulary()); g.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3)); g.add_token_merges([])
    g.add_bos_token_id(1); g.add_eos_token_id(2); g.add_add_bos_token(False)
    if rope["rope_type"] == "llama3": g.add_tensor("rope_freqs.weight", llama3_factors(config))
    bf16 = lambda a: dict(tensor=gguf.quants.quantize(np.ascontiguousarray(a), gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    for name, a in stacked_experts(weights).items(): g.add_tensor(name, **bf16(a))
    for key, tensor in weights.items():
        if ".experts." in key: continue
        a = tensor.numpy()
        if arch == "llama" and "q_proj" in key: a = permuted(a, config.num_attention_heads)
        if arch == "llama" and "k_proj" in key: a = permuted(a, config.num_key_value_heads)
        # The converter keeps routers in F32, as it does norms.
        if a.ndim == 1 or "ffn_gate_inp" in gguf_name(key): g.add_tensor(gguf_name(key), np.ascontiguousarray(a))
        else: g.add_tensor(gguf_name(key), **bf16(a))
    g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()


def vocabulary():
    return ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(3, VOCAB)]


def write_text_files(folder):
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary())}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))


def make(name, case):
    for seed in range(10000):
        config, model = build(case, seed)
        if (golden := run(model, seed)) is not None: break
    ids, logits = golden
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        weights = load_file(f"{saved}/model.safetensors")
    assert ("lm_head.weight" in weights) != config.tie_word_embeddings
    assert all(torch.equal(w, w.half().float()) and torch.equal(w, w.bfloat16().float()) for w in weights.values())
    save_file({k: v.bfloat16() for k, v in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    settings = config.to_dict() | {"architectures": [type(model).__name__]}
    if name in ("qwen3", "llama3"):  # The older spelling, of which most published models are.
        rope = settings.pop("rope_parameters")
        settings["rope_theta"] = rope.pop("rope_theta")
        settings["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    if name == "qwen3-moe": settings["num_experts"] = settings.pop("num_local_experts")  # As published; newer versions save it so.
    (folder / "config.json").write_text(json.dumps(settings, indent=1, default=str) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True}) + "\n")
    write_text_files(folder)
    if name not in ("qwen3-moe-mixed", "qwen3-windows"): write_gguf(folder / "model.gguf", name, config, weights)
    save_file({"prompt": ids[:PROMPT].int(), "greedy": ids[PROMPT:].int(), "logits": logits.contiguous()}, folder / "golden.safetensors")
    for file in folder.iterdir(): file.chmod(0o644)
    print(name, "seed", seed, "logits", float(logits.min()), float(logits.max()), "greedy", ids[PROMPT:].tolist())


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])
