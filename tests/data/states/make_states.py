"""Makes the tiny models in this folder, some of whose layers keep a state of each sequence, and what they compute.

    pip install torch transformers safetensors numpy gguf
    git clone https://github.com/ggml-org/llama.cpp
    python make_states.py LLAMA_CPP        # all, or: python make_states.py LLAMA_CPP qwen3-next

Each folder has a random model of the transformers library's own class as the library saves it, in bfloat16, the same as llama.cpp's own
converter makes it of that (`model.gguf`, without a tokenizer; none of Bamba), and `golden.safetensors`: a `prompt`, the 32 `greedy` tokens after it, and
the `logits` of both that the library computes in float32. The tokenizer is tests/data/tiny/llama3's.
"""
import json, shutil, sys
from pathlib import Path

import torch, transformers as t
from safetensors.torch import save_file

torch.set_num_threads(1)
HERE = Path(__file__).parent
SIZES = dict(vocab_size=160, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
             bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, rms_norm_eps=1e-6, attn_implementation="eager")
DELTA = dict(linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, intermediate_size=64,
             rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
ROUTED = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
# Of heads half as long as attention's, because the converter takes hidden states for two halves of what states give.
MAMBA = dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16, head_dim=8)
GRANITE = MAMBA | dict(shared_intermediate_size=32, layer_types=["mamba", "mamba", "attention", "mamba"], position_embedding_type="nope",
                       embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=2.0)
NEMOTRON = dict(head_dim=8, intermediate_size=64, ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, conv_kernel=4, chunk_size=16, layer_norm_epsilon=1e-5, rms_norm_eps=1e-5,
                n_routed_experts=8, n_shared_experts=1, moe_intermediate_size=32, moe_shared_expert_intermediate_size=32, num_experts_per_tok=3, routed_scaling_factor=2.5, n_group=1,
                topk_group=1)
LFM2 = dict(conv_L_cache=3, layer_types=["conv", "full_attention", "conv", "conv"], norm_eps=1e-5, tie_word_embeddings=True, head_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4})
# With factors of few digits, so that products of them and weights are halves.
FALCON = MAMBA | dict(mamba_n_heads=6, mamba_d_ssm=48, mamba_n_groups=2, num_hidden_layers=2, intermediate_size=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
                      embedding_multiplier=3.0, lm_head_multiplier=0.4, key_multiplier=0.75, attention_in_multiplier=1.25, attention_out_multiplier=0.5, ssm_in_multiplier=2.0,
                      ssm_out_multiplier=0.625, ssm_multipliers=[0.75, 1.25, 0.875, 1.5, 0.625], mlp_multipliers=[0.75, 1.25])
CASES = {
    "qwen3-next": (t.Qwen3NextConfig, DELTA | ROUTED),
    "qwen3_5": (t.Qwen3_5TextConfig, DELTA | dict(linear_num_value_heads=6, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])),
    "qwen3_5-moe": (t.Qwen3_5MoeTextConfig, DELTA | ROUTED),
    "granite-hybrid": (t.GraniteMoeHybridConfig, GRANITE | dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=32)),
    "granite-hybrid-dense": (t.GraniteMoeHybridConfig, GRANITE | dict(num_local_experts=0, num_experts_per_tok=0, intermediate_size=32, mamba_conv_bias=False)),
    "bamba": (t.BambaConfig, MAMBA | dict(intermediate_size=64, attn_layer_indices=[1], rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})),
    "nemotron-h": (t.NemotronHConfig, NEMOTRON | dict(layers_block_type=["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"])),
    "nemotron-h-moe": (t.NemotronHConfig, NEMOTRON | dict(layers_block_type=["linear_attention", "moe", "full_attention", "moe", "linear_attention"])),
    "mamba2": (t.Mamba2Config, dict(num_hidden_layers=2, num_heads=8, head_dim=8, state_size=16, n_groups=2, conv_kernel=4, chunk_size=16, layer_norm_epsilon=1e-5, num_attention_heads=None, num_key_value_heads=None,
                                    max_position_embeddings=None, rms_norm_eps=None)),
    "falcon-h1": (t.FalconH1Config, FALCON | dict(mamba_rms_norm=False)),
    "falcon-h1-norm": (t.FalconH1Config, FALCON | dict(mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_conv_bias=False)),
    "lfm2": (t.Lfm2Config, LFM2 | dict(intermediate_size=96, block_multiple_of=32)),
    "lfm2-moe": (t.Lfm2MoeConfig, LFM2 | dict(intermediate_size=64, num_dense_layers=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)),
}


SEEDS = 6


def drawn(case, seed):
    """A model, a prompt, both and the likeliest tokens after it, their logits, and how clear its choices are."""
    kind, settings = CASES[case]
    torch.manual_seed(seed)
    settings = {key: value for key, value in (SIZES | settings).items() if value is not None}
    if "layers_block_type" in settings: settings.pop("num_hidden_layers")
    model = t.AutoModelForCausalLM.from_config(kind(**settings)).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape)
            if name.endswith("A_log"): x = torch.empty(p.shape).uniform_(-3, 1)
            elif name.endswith("dt_bias"): x = 0.5 * x
            elif name.endswith(".D"): x = 1 + 0.5 * x
            elif "norm" in name and ("linear_attn.norm" in name or not case.startswith("qwen")): x = 1 + 0.2 * x
            elif "norm" in name: x = 0.2 * x
            elif "conv1d" in name: x = 0.5 * x
            elif name.endswith(("gate.weight", "router.weight")): x = 0.5 * x
            elif ".conv.conv" in name: x = 0.7 * x
            elif any(part in name for part in ("lm_head", "linear_attn", "mamba", ".conv.", "mixer.in_proj", "mixer.out_proj")): x = 0.3 * x
            else: x = 0.15 * x
            p.copy_(x.bfloat16().float())
        prompt = torch.randint(3, 160, (1, 21))
        # One by one, by the recurrent form of the library's; the logits by its form of chunks. Bamba's class forgets positions unless they are said.
        text, step = prompt, model(prompt, use_cache=True)
        for _ in range(32):
            text = torch.cat([text, step.logits[:, -1:].argmax(-1)], 1)
            step = model(text[:, -1:], cache=step.cache, position_ids=torch.tensor([[text.shape[1] - 1]]), use_cache=True)
        logits = model(text[:, :-1], use_cache=False).logits[0]
        top = logits[20:].topk(2).values
        # How far keys and values in halves, as a cache keeps them, move it.
        assert torch.equal(text[0, 21:], logits[20:].argmax(-1)), "the library's own forms differ"
        hooks = [m.register_forward_hook(lambda m, x, y: y.half().float()) for n, m in model.named_modules() if n.endswith(("k_proj", "v_proj"))]
        moved = float((model(text[:, :-1], use_cache=False).logits[0] - logits).abs().max())
        for hook in hooks: hook.remove()
    return model, prompt, text, logits, (moved < 4e-4 * float(logits.max() - logits.min()), float((top[:, 0] - top[:, 1]).min()))


def convert(folder):
    import gguf
    from conversion import ModelBase, get_model_architecture, get_model_class, ModelType
    # As the file says: the library's class of Nemotron-H adds the settings of experts where there are none.
    ModelBase.load_hparams = staticmethod(lambda folder, *_, **__: json.loads((folder / "config.json").read_text()))
    hparams = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    made = type("Made", (kind,), {"set_vocab": lambda self: None, "model_arch": kind.model_arch, "no_mtp": True})
    # What it multiplies Falcon-H1's weights with is not rounded.
    made(folder, gguf.LlamaFileType.ALL_F32 if folder.name.startswith("falcon") else gguf.LlamaFileType.MOSTLY_BF16, folder / "model.gguf", eager=True).write()


def make(case):
    # Of some models the one whose choices are the clearest.
    model, prompt, text, logits, ahead = max((drawn(case, seed) for seed in range(SEEDS)), key=lambda found: found[-1])
    if not ahead[0]: print(f"{case}: of no seed the choices are clear")
    print(f"{case}: the closest of the greedy tokens was {ahead[1]:.3f} ahead, of a range of {float(logits.max() - logits.min()):.1f}")
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    # As they are published, and as the converter knows them.
    config = json.loads((folder / "config.json").read_text())
    if case.startswith("granite"): config["layer_types"] = GRANITE["layer_types"]
    if case.startswith("nemotron"):
        types = config.pop("layers_block_type")
        marks = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        config |= dict(num_hidden_layers=len(types), hybrid_override_pattern="".join(marks[of] for of in types))
        if "moe" not in types: config = {key: value for key, value in config.items() if "expert" not in key and "moe" not in key}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    # The converter orders the rows of Bamba's queries and keys as if whole heads were turned.
    if case != "bamba": convert(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
    tokens = lambda x: x.flatten().to(torch.int32).contiguous()
    save_file({"prompt": tokens(prompt), "greedy": tokens(text[:, 21:]), "logits": logits.contiguous()}, folder / "golden.safetensors")
    print(f"{case}: {sum(file.stat().st_size for file in folder.iterdir())} bytes")


sys.path.insert(0, sys.argv[1])
sys.path.insert(1, sys.argv[1] + "/gguf-py")
for case in sys.argv[2:] or CASES:
    make(case)
