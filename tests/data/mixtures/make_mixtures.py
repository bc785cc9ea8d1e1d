"""Makes the tiny mixtures of experts in this folder, and what they compute.

    pip install torch transformers safetensors numpy gguf
    git clone https://github.com/ggml-org/llama.cpp
    LLAMA_CPP=llama.cpp python make_mixtures.py           # all, or: python make_mixtures.py deepseek-v3

Each folder has a random model of the transformers library's own class as the library saves it, in bfloat16, the same as
llama.cpp's converter names and cuts it (`model.gguf`; of `CONVERTED` by that itself), and `golden.safetensors`: a `prompt`, the 32 `greedy` tokens after it, and
the `logits` of both that the library computes in float32. The tokenizer is tests/data/tiny/llama3's.

Of DeepSeek's first mixture and Ling the library has no class. They are made of its own modules, put together (`BUILT`), and named as
their makers' files are (`RENAMED`).
"""
import json, os, re, shutil, sys
from pathlib import Path

LLAMA_CPP = os.environ.get("LLAMA_CPP")
if LLAMA_CPP: sys.path[:0] = [LLAMA_CPP, LLAMA_CPP + "/gguf-py"]

import gguf, numpy as np, torch, transformers as t
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeSparseMoeBlock

HERE = Path(__file__).parent
SIZES = dict(vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
             tie_word_embeddings=False, rms_norm_eps=1e-6, attn_implementation="eager")
ROUTED = dict(intermediate_size=96, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32, **ROUTED)
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MSCALED = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707)
SMALL = dict(intermediate_size=32, num_key_value_heads=2, rope_parameters=PLAIN)
MULTIPLIED = dict(embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2)
LLAMA4 = dict(num_hidden_layers=4, intermediate_size=32, intermediate_size_mlp=64, num_key_value_heads=2, head_dim=16, num_experts_per_tok=1)
COHERE = dict(SMALL, rms_norm_eps=None, num_experts=6, num_experts_per_tok=2, num_shared_experts=2, head_dim=16, sliding_window=8, logit_scale=0.4, rope_theta=1e4)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LONG = dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=16, short_mscale=1.1, long_mscale=1.25, factor=16.0,
            short_factor=[1.0 + 0.01 * i for i in range(4)], long_factor=[1.0 + 0.3 * i for i in range(4)])
CASES = {
    "deepseek-v2-lite": (t.DeepseekV2Config, dict(**LATENT, q_lora_rank=None, rope_parameters=MSCALED, topk_method="greedy", routed_scaling_factor=1.0,
                                                  first_k_dense_replace=1, norm_topk_prob=False), "deepseek2"),
    "deepseek-v2": (t.DeepseekV2Config, dict(**LATENT, q_lora_rank=24, rope_parameters=PLAIN, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                             routed_scaling_factor=16.0, first_k_dense_replace=1, norm_topk_prob=False), None),
    "deepseek-v3": (t.DeepseekV3Config, dict(**LATENT, q_lora_rank=24, rope_parameters=MSCALED | dict(mscale=1.0, mscale_all_dim=1.0), n_group=4, topk_group=2,
                                             routed_scaling_factor=2.5, first_k_dense_replace=1, norm_topk_prob=True), "deepseek2"),
    "gpt-oss": (t.GptOssConfig, dict(intermediate_size=32, num_key_value_heads=2, head_dim=16, num_local_experts=6, num_experts_per_tok=2, sliding_window=8,
                                     rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                          original_max_position_embeddings=64)), "gpt-oss"),
    "qwen2-moe": (t.Qwen2MoeConfig, dict(intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=8, num_experts_per_tok=2,
                                         num_key_value_heads=2, norm_topk_prob=False, rope_parameters=PLAIN), "qwen2moe"),
    "glm4-moe": (t.Glm4MoeConfig, dict(**ROUTED, num_key_value_heads=2, head_dim=16, use_qk_norm=True, attention_bias=True, first_k_dense_replace=1,
                                       routed_scaling_factor=1.5, rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}), "glm4moe"),
    "dots1": (t.Dots1Config, dict(**ROUTED, num_key_value_heads=2, head_dim=16, first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True,
                                  rope_parameters=PLAIN, layer_types=["full_attention"] * 2), "dots1"),
    "olmoe": (t.OlmoeConfig, dict(SMALL, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, rms_norm_eps=1e-5), "olmoe"),
    "flex-olmo": (t.FlexOlmoConfig, dict(SMALL, pad_token_id=0, num_experts=6, num_experts_per_tok=2), None),
    "granite-moe": (t.GraniteMoeConfig, dict(SMALL, **MULTIPLIED, num_local_experts=6, num_experts_per_tok=2), None),
    "granite-moe-shared": (t.GraniteMoeSharedConfig, dict(SMALL, **MULTIPLIED, num_local_experts=6, num_experts_per_tok=2, shared_intermediate_size=64), "granitemoe"),
    "ernie4_5-moe": (t.Ernie4_5_MoeConfig, dict(SMALL, intermediate_size=128, moe_intermediate_size=32, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
                                                moe_layer_start_index=1, use_bias=False), "ernie4_5-moe"),
    "minimax-m2": (t.MiniMaxM2Config, dict(SMALL, num_local_experts=8, num_experts_per_tok=3, head_dim=16, rotary_dim=8), "minimax-m2"),
    "glm4-moe-lite": (t.Glm4MoeLiteConfig, dict(LATENT, q_lora_rank=24, rope_parameters=PLAIN, routed_scaling_factor=1.8, norm_topk_prob=True), "deepseek2"),
    "solar-open": (t.SolarOpenConfig, dict(SMALL, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, head_dim=16), "glm4moe"),
    "hunyuan-moe": (t.HunYuanMoEV1Config, dict(SMALL, num_experts=6, moe_topk=2, head_dim=16, rope_parameters=PLAIN | dict(rope_type="dynamic", alpha=50.0, factor=1.0)), "hunyuan-moe"),
    "afmoe": (t.AfmoeConfig, dict(SMALL, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4, num_experts=6, num_experts_per_tok=2, num_shared_experts=1, num_dense_layers=1,
                                  head_dim=16, sliding_window=8, route_scale=2.5, mup_enabled=True), "afmoe"),
    "phimoe": (t.PhimoeConfig, dict(SMALL, num_local_experts=6, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, rms_norm_eps=1e-5, rope_parameters=LONG), "phimoe"),
    "cohere2-moe": (t.Cohere2MoeConfig, dict(COHERE, layer_norm_eps=1e-5, num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "full_attention"], mlp_layer_types=["dense", "sparse", "sparse"],
                                             expert_selection_fn="sigmoid", prefix_dense_intermediate_size=48), "cohere2moe"),
    "cohere2-moe-sum": (t.Cohere2MoeConfig, dict(COHERE, rms_norm_eps=1e-5, layer_types=["sliding_attention", "full_attention"], mlp_layer_types=["dense", "sparse"],
                                                 prefix_dense_sliding_window_pattern=4, shared_expert_combination_strategy="sum", attention_bias=True), None),
    "exaone-moe": (t.ExaoneMoeConfig, dict(SMALL, intermediate_size=96, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=3, num_shared_experts=1, head_dim=16,
                                           sliding_window=8, layer_types=["sliding_attention", "full_attention"], first_k_dense_replace=1), "exaone-moe"),
    "deepseek": (t.LlamaConfig, dict(SMALL, intermediate_size=96), "deepseek"),
    "bailing-moe": (t.LlamaConfig, dict(SMALL), "bailingmoe"),
    "bailing-moe-v2": (t.Glm4MoeConfig, dict(ROUTED, num_key_value_heads=2, head_dim=16, use_qk_norm=True, attention_bias=False, first_k_dense_replace=1, n_shared_experts=1,
                                             n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_parameters=PLAIN | {"partial_rotary_factor": 0.5}), "bailingmoe2"),
    "llama4": (t.Llama4TextConfig, dict(LLAMA4, num_local_experts=4, attention_chunk_size=16, floor_scale=8, attn_scale=0.5, rope_parameters=LLAMA3), None),
    "llama4-long": (t.Llama4TextConfig, dict(LLAMA4, num_local_experts=4, interleave_moe_layer_step=2, rope_parameters=PLAIN | {"rope_theta": 5e5}), "llama4"),
    "llama4-plain": (t.Llama4TextConfig, dict(LLAMA4, num_local_experts=2, num_hidden_layers=2, use_qk_norm=False, attn_temperature_tuning=False, attention_chunk_size=12,
                                              no_rope_layers=[1, 0], layer_types=["full_attention", "chunked_attention"], rope_parameters=PLAIN), None),
}


def llama_of(block, settings, dense):
    """What makes a Llama whose layers from `dense` on have a mixture of another class of the library."""
    def build(config):
        model = t.AutoModelForCausalLM.from_config(config)
        for layer in model.model.layers[dense:]:
            layer.mlp = block(settings)
        return model
    return build


BUILT = {
    "deepseek": llama_of(DeepseekV2Moe, t.DeepseekV2Config(**SIZES | ROUTED | dict(topk_method="greedy", routed_scaling_factor=1.0, experts_implementation="eager")), 1),
    "bailing-moe": llama_of(Ernie4_5_MoeSparseMoeBlock, t.Ernie4_5_MoeConfig(**SIZES | dict(moe_intermediate_size=32, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2)), 0),
}


def apart(state):
    """The experts of stacks each under a name of its own."""
    for name in [name for name in state if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        x, stem = state.pop(name), name.rsplit(".", 1)[0]
        for expert, of in enumerate(x):
            parts = {"down": of} if name.endswith("down_proj") else dict(zip(("gate", "up"), of.chunk(2)))
            for part, matrix in parts.items(): state[f"{stem}.{expert}.{part}_proj.weight"] = matrix.contiguous()
    return state


ROUTED_V1 = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=False, scoring_func="softmax")
LING = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True, norm_head=False, use_bias=False, use_qkv_bias=False)
RENAMED = {  # what the makers' settings say, and which of the library's say something else; what tensors are called
    "deepseek": (dict(model_type="deepseek", architectures=["DeepseekForCausalLM"], **ROUTED_V1), (), {}),
    "bailing-moe": (dict(model_type="bailing_moe", architectures=["BailingMoeForCausalLM"], num_shared_experts=2, first_k_dense_replace=0, **LING), (), {
        "embed_tokens": "word_embeddings", "self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense"}),
    "bailing-moe-v2": (dict(model_type="bailing_moe_v2", architectures=["BailingMoeV2ForCausalLM"], num_shared_experts=1, score_function="sigmoid", use_qk_norm=True,
                            moe_router_enable_expert_bias=True, **LING), ("n_routed_experts", "n_shared_experts"), {
        "embed_tokens": "word_embeddings", "self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm", "gate.e_score_correction_bias": "gate.expert_bias"}),
}


def rename(case, folder):
    """Puts the makers' names in place of the library's."""
    added, gone, names = RENAMED[case]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in (config | added).items() if key not in gone}, indent=2) + "\n")
    state = load_file(folder / "model.safetensors")
    if "self_attn.qkv_proj" in names:
        for name in [name for name in state if "q_proj" in name]:
            state[name.replace("q_proj", "qkv_proj")] = torch.cat([state.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")])
    for name in list(state):
        new = name
        for old, other in names.items(): new = new.replace(old, other)
        state[new] = state.pop(name)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def drawn(case, seed):
    """A model, a prompt, both and the likeliest tokens after it, their logits, and how clear its choices are: of experts,
    and how far each token was ahead at least."""
    kind, settings, _ = CASES[case]
    torch.manual_seed(seed)
    config = kind(**SIZES | settings)
    model = BUILT.get(case, t.AutoModelForCausalLM.from_config)(config).float().eval()
    for module in model.modules():  # the class (transformers 5.24) does not say how long a text is, and so never gets the factors of long ones
        if type(module).__name__ == "PhimoeRotaryEmbedding":
            module.rope_init_fn = lambda config, *_, of=module.rope_init_fn, **__: of(config, seq_len=config.max_position_embeddings)
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + [b for b in model.named_buffers() if "e_score" in b[0]]:
            x = torch.randn(p.shape)
            if "norm" in name: x = 0.2 * x + (0 if name.endswith("bias") else 1)
            # Scores of which some are near each other, all of them above or below zero.
            elif case == "phimoe" and name.endswith(".router.weight"): x = 0.5 * x[:1] + 0.04 * x
            elif "e_score" in name: x = 0.2 * x if case != "bailing-moe" else 0 * x
            elif name.endswith((".gate.weight", ".router.weight", ".wg.weight")): x = 0.5 * x
            elif "experts" in name and name.endswith("_bias"): x = 0.5 * x
            elif "shared_expert_gate" in name: x = 0.3 * x
            elif "lm_head" in name: x = 0.3 * x
            else: x = 0.15 * x
            p.copy_(x.bfloat16().float())
        prompt = torch.randint(3, 160, (1, 21))
        text = prompt
        for _ in range(32):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
        logits = model(text[:, :-1]).logits[0]
        top = logits[20:].topk(2).values
        # How far keys and values in halves, as a cache keeps them, move it: much where experts are as good as each other.
        hooks = [m.register_forward_hook(lambda m, x, y: y.half().float()) for n, m in model.named_modules()
                 if n.endswith(("k_proj", "v_proj", "kv_a_proj_with_mqa"))]
        moved = float((model(text[:, :-1]).logits[0] - logits).abs().max())
        for hook in hooks: hook.remove()
    return model, prompt, text, logits, (moved < 4e-4 * float(logits.max() - logits.min()), float((top[:, 0] - top[:, 1]).min()))


SEEDS = {"ernie4_5-moe": 64, "deepseek-v2": 64, "cohere2-moe": 6, "cohere2-moe-sum": 6}


def make(case):
    architecture = CASES[case][2]
    # Of some models that whose choices are the clearest.
    seed = max(range(SEEDS.get(case, 16)), key=lambda seed: drawn(case, seed)[-1])
    model, prompt, text, logits, ahead = drawn(case, seed)
    if not ahead[0]: print(f"{case}: of no seed the choices are clear")
    print(f"{case}: the closest of the greedy tokens was {ahead[1]:.3f} ahead, of a range of {float(logits.max() - logits.min()):.1f}")
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    if case in BUILT:
        state = {name: x for name, x in apart(load_file(folder / "model.safetensors")).items() if "e_score" not in name}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
    tokens = lambda x: x.flatten().to(torch.int32).contiguous()
    save_file({"prompt": tokens(prompt), "greedy": tokens(text[:, 21:]), "logits": logits.contiguous()}, folder / "golden.safetensors")
    if case in CONVERTED: convert(folder)
    elif architecture:
        config = json.loads((folder / "config.json").read_text()) | RENAMED.get(case, [{}])[0]
        write_gguf(folder / "model.gguf", architecture, config, folder / "model.safetensors")
    if case in RENAMED: rename(case, folder)
    print(f"{case}: {sum(file.stat().st_size for file in folder.iterdir())} bytes")


CONVERTED = ["cohere2-moe"]


def convert(folder):
    from conversion import ModelBase, get_model_architecture, get_model_class, ModelType
    ModelBase.load_hparams = staticmethod(lambda folder, *_, **__: json.loads((folder / "config.json").read_text()))
    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    made = type("Made", (kind,), {"set_vocab": lambda self: None, "model_arch": kind.model_arch, "no_mtp": True})
    made(folder, gguf.LlamaFileType.MOSTLY_BF16, folder / "model.gguf", eager=True).write()


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
IN_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "mlp.gate.wg": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "mlp.gate.e_score_correction": "exp_probs_b", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.gate_proj": "attn_gate", "mlp.router.gate": "ffn_gate_inp", "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm",
    "feed_forward.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp", "shared_mlp.output_linear": "ffn_down_shexp", "self_attn.qkv_proj": "attn_qkv",
} | {f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp" for shared in ("shared_expert", "shared_experts", "shared_mlp") for part in ("gate", "up", "down")} | {
    f"feed_forward.{shared}{part}_proj": f"ffn_{part}{'_shexp' if shared else ''}" for shared in ("", "shared_expert.") for part in ("gate", "up", "down")}


# Whose converter turns the rows of queries and keys so that rope turns neighbours.
PERMUTED = ("granitemoe", "deepseek", "bailingmoe")


def permuted(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(path, architecture, config, weights):
    state = {name: tensor.float() for name, tensor in load_file(weights).items()}
    w = gguf.GGUFWriter(path, architecture)
    get = config.get
    w.add_context_length(get("max_position_embeddings")); w.add_embedding_length(get("hidden_size")); w.add_block_count(get("num_hidden_layers"))
    w.add_head_count(get("num_attention_heads")); w.add_layer_norm_rms_eps(get("rms_norm_eps"))
    ffn = get("intermediate_size_mlp") or get("intermediate_size")
    if ffn: w.add_feed_forward_length(ffn)
    latent, split = architecture == "deepseek2", get("model_type") in ("deepseek_v3", "glm4_moe_lite")
    w.add_head_count_kv(1 if latent and split else get("num_key_value_heads"))
    experts = get("n_routed_experts") or get("num_experts") or get("num_local_experts") or get("moe_num_experts")
    w.add_expert_count(experts); w.add_expert_used_count(get("num_experts_per_tok") or get("moe_k") or get("moe_topk"))
    if architecture not in ("olmoe", "granitemoe", "phimoe"): w.add_expert_feed_forward_length(get("moe_intermediate_size") or get("intermediate_size"))
    shared = get("n_shared_experts") or get("num_shared_experts") or get("moe_num_shared_experts")
    dense = get("first_k_dense_replace") or get("num_dense_layers") or get("moe_layer_start_index") or (get("mlp_layer_types") or []).count("dense")
    rope = get("rope_parameters") or get("rope_scaling")
    w.add_rope_freq_base(rope["rope_theta"] * (rope["alpha"] ** (get("head_dim") / (get("head_dim") - 2)) if "alpha" in rope else 1.0))
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN); w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope: w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if shared: w.add_expert_shared_count(shared)
    if dense: w.add_leading_dense_block_count(dense)
    if get("routed_scaling_factor") or architecture in ("deepseek", "bailingmoe"): w.add_expert_weights_scale(get("routed_scaling_factor") or 1.0)
    if get("norm_topk_prob"): w.add_expert_weights_norm(True)
    if architecture == "phimoe":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"]); w.add_rope_scaling_attn_factors(rope["long_mscale"])
        w.add_rope_dimension_count(get("hidden_size") // get("num_attention_heads")); w.add_sliding_window(get("sliding_window") or 0)
        for name in ("long", "short"): w.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32))
    if (get("n_group") or 1) > 1 and (split or architecture == "bailingmoe2"): w.add_expert_group_count(get("n_group")); w.add_expert_group_used_count(get("topk_group"))
    if latent:
        nope, turned, value, rank = get("qk_nope_head_dim"), get("qk_rope_head_dim"), get("v_head_dim"), get("kv_lora_rank")
        w.add_kv_lora_rank(rank); w.add_rope_dimension_count(turned)
        if get("q_lora_rank"): w.add_q_lora_rank(get("q_lora_rank"))
        if split:
            w.add_key_length(rank + turned); w.add_value_length(rank); w.add_key_length_mla(nope + turned); w.add_value_length_mla(value)
            w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        else:  # as files were before the cache was of latents
            w.add_key_length(nope + turned); w.add_value_length(value)
    if architecture == "gpt-oss": w.add_sliding_window(get("sliding_window")); w.add_key_length(get("head_dim")); w.add_value_length(get("head_dim"))
    if architecture == "qwen2moe": w.add_expert_shared_feed_forward_length(get("shared_expert_intermediate_size"))
    if architecture in ("glm4moe", "bailingmoe2", "minimax-m2", "dots1", "exaone-moe"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID); w.add_key_length(get("head_dim")); w.add_value_length(get("head_dim"))
    if architecture == "afmoe":
        w.add_sliding_window(get("sliding_window")); w.add_key_length(get("head_dim")); w.add_value_length(get("head_dim")); w.add_expert_weights_norm(True)
        w.add_expert_weights_scale(get("route_scale")); w.add_rope_dimension_count(get("head_dim")); w.add_vocab_size(get("vocab_size"))
    turned = rope.get("partial_rotary_factor", 1.0)
    if architecture in ("glm4moe", "bailingmoe2", "minimax-m2"): w.add_rope_dimension_count(int(get("head_dim") * turned))
    if architecture in PERMUTED: w.add_rope_dimension_count(get("hidden_size") // get("num_attention_heads")); w.add_vocab_size(get("vocab_size"))
    if architecture == "llama4":
        w.add_interleave_moe_layer_step(get("interleave_moe_layer_step")); w.add_key_length(16); w.add_value_length(16); w.add_rope_dimension_count(16)
    if architecture == "hunyuan-moe":
        w.add_expert_shared_count(1); w.add_expert_shared_feed_forward_length(get("intermediate_size")); w.add_key_length(get("head_dim")); w.add_value_length(get("head_dim"))
    if architecture in ("deepseek", "exaone-moe", "hunyuan-moe"): w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if architecture == "granitemoe":
        w.add_attention_scale(get("attention_multiplier")); w.add_embedding_scale(get("embedding_multiplier")); w.add_residual_scale(get("residual_multiplier"))
        w.add_logit_scale(get("logits_scaling")); w.add_expert_shared_feed_forward_length(get("shared_intermediate_size"))
    if architecture == "ernie4_5-moe":
        w.add_interleave_moe_layer_step(get("moe_layer_interval")); w.add_expert_shared_feed_forward_length(get("intermediate_size") // get("num_key_value_heads"))
    if architecture == "bailingmoe2": w.add_expert_shared_feed_forward_length(shared * get("moe_intermediate_size")); w.add_nextn_predict_layers(0)
    if architecture == "exaone-moe":
        w.add_sliding_window(get("sliding_window")); w.add_sliding_window_pattern([of == "sliding_attention" for of in get("layer_types")])
        w.add_expert_shared_feed_forward_length(shared * get("moe_intermediate_size")); w.add_nextn_predict_layers(0)

    def add(name, x):
        data = x.contiguous().numpy()
        exact = data.ndim > 1 and "bias" not in name and "ffn_gate_inp" not in name and data.shape[-1] % 32 == 0
        if exact: w.add_tensor(name, gguf.quants.quantize(data, gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else: w.add_tensor(name, data)

    if architecture == "bailingmoe2":  # the converter leaves the makers' one matrix whole
        for name in [name for name in state if "q_proj" in name]:
            state[name.replace("q_proj", "qkv_proj")] = torch.cat([state.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")])
    stacks = {}
    for name, x in state.items():
        if not name.startswith("model.layers."):
            stem, suffix = name.rsplit(".", 1)
            add(f"{NAMES[stem]}.{suffix}", x)
            continue
        _, _, layer, rest = name.split(".", 3)
        block = f"blk.{layer}."
        if rest.startswith("mlp.experts.gate_up_proj"):  # gpt-oss: gate and up in turns, inputs outermost
            x = x if rest.endswith("_bias") else x.transpose(1, 2)
            for part, of in (("gate", x[:, ::2]), ("up", x[:, 1::2])): add(f"{block}ffn_{part}_exps.{'bias' if rest.endswith('_bias') else 'weight'}", of)
        elif rest == "feed_forward.experts.gate_up_proj":
            for part, of in zip(("gate", "up"), x.transpose(1, 2).chunk(2, 1)): add(f"{block}ffn_{part}_exps.weight", of)
        elif rest == "feed_forward.experts.down_proj":
            add(f"{block}ffn_down_exps.weight", x.transpose(1, 2))
        elif rest.startswith("mlp.experts.down_proj"):
            add(f"{block}ffn_down_exps.{'bias' if rest.endswith('_bias') else 'weight'}", x if rest.endswith("_bias") else x.transpose(1, 2))
        elif rest.startswith("block_sparse_moe.input_linear"):
            for part, of in zip(("gate", "up"), x.chunk(2, 1)): add(f"{block}ffn_{part}_exps.weight", of)
        elif rest.startswith("block_sparse_moe.output_linear"):
            add(f"{block}ffn_down_exps.weight", x)
        elif rest.startswith("shared_mlp.input_linear"):
            for part, of in zip(("gate", "up"), x.chunk(2)): add(f"{block}ffn_{part}_shexp.weight", of)
        elif rest.startswith(("mlp.experts.", "block_sparse_moe.experts.")):
            _, _, expert, part, _ = rest.split(".")
            part = {"w1": "gate", "w2": "down", "w3": "up"}.get(part, part)
            stacks.setdefault(f"{block}ffn_{part.removesuffix('_proj')}_exps.weight", {})[int(expert)] = x
        elif rest.startswith("post_attention_layernorm"):
            add(f"{block}{'post_attention_norm' if architecture in ('gpt-oss', 'glm4moe', 'afmoe') else 'ffn_norm'}.{rest.rsplit('.', 1)[1]}", x)
        elif rest.endswith(("e_score_correction_bias", "expert_bias")):
            add(f"{block}exp_probs_b.bias", x)
        elif rest.startswith("self_attn.kv_b_proj") and split:
            heads = x.view(get("num_attention_heads"), nope + value, rank)
            add(f"{block}attn_k_b.weight", heads[:, :nope].transpose(1, 2)); add(f"{block}attn_v_b.weight", heads[:, nope:])
        elif architecture in PERMUTED and rest.startswith(("self_attn.q_proj", "self_attn.k_proj")):
            add(f"{block}{IN_LAYER[rest[:16]]}.weight", permuted(x, get("num_attention_heads") if "q_proj" in rest else get("num_key_value_heads")))
        elif rest == "self_attn.sinks":
            add(f"{block}attn_sinks.weight", x)
        else:
            stem, suffix = rest.rsplit(".", 1)
            add(f"{block}{IN_LAYER[stem]}.{suffix}", x.flatten() if stem.endswith("shared_expert_gate") else x)
    for name, of in stacks.items():
        add(name, torch.stack([of[expert] for expert in range(len(of))]))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


for case in sys.argv[1:] or CASES:
    make(case)
