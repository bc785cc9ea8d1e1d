"""Makes the tiny models in this folder, whose rotary embedding depends on the length of a text, and what they compute.

    pip install torch transformers safetensors
    python make_longrope.py

Each folder has a random model of the transformers library's own class as the library saves it, in bfloat16, and
`golden.safetensors`, computed in float32: a `short` text within the original context of 16 tokens with its `short_logits`; a
`long` text beyond it with the `long_logits` of its last 8 tokens; and `greedy` tokens after the short text, each drawn from the
whole text anew, as the library does where a text grows beyond the original context. The tokenizer is tests/data/tiny/llama3's.
"""
import shutil
from pathlib import Path

import torch, transformers as t
from safetensors.torch import save_file

HERE = Path(__file__).parent
ORIGINAL, SHORT, LONG, ROWS, GREEDY, VOCAB = 16, 12, 40, 8, 12, 160
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
             bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=True, attn_implementation="eager")


def longrope(pairs, **more):
    return dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=ORIGINAL, short_factor=[1.0 + 0.05 * i for i in range(pairs)],
                long_factor=[1.5 + 0.6 * i for i in range(pairs)], **more)


OF_LATENTS = dict(num_attention_heads=2, num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=16, v_head_dim=16)
CASES = {
    "phi3": (t.Phi3Config, dict(rope_parameters=longrope(8), original_max_position_embeddings=ORIGINAL)),
    # As Phi-4-mini.
    "phi4-mini": (t.Phi3Config, dict(rope_parameters=longrope(6, partial_rotary_factor=0.75), original_max_position_embeddings=ORIGINAL)),
    "phi3-factor": (t.Phi3Config, dict(rope_parameters=longrope(8, attention_factor=1.4), original_max_position_embeddings=ORIGINAL)),
    "phimoe": (t.PhimoeConfig, dict(num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, tie_word_embeddings=False,
                                    rope_parameters=longrope(8, short_mscale=1.1, long_mscale=1.3))),
    "minicpm3": (t.MiniCPM3Config, dict(**OF_LATENTS, scale_emb=2.0, scale_depth=1.4, dim_model_base=16, rope_parameters=longrope(8, factor=4.0))),
    "llama": (t.LlamaConfig, dict(rope_parameters=longrope(8, factor=2.0))),
    # Its frequencies change beyond max_position_embeddings.
    "llama-dynamic": (t.LlamaConfig, dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=4.0))),
    "qwen3-dynamic": (t.Qwen3Config, dict(head_dim=16, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=4.0))),
}


def logits(model, tokens):
    if isinstance(model.config, t.PhimoeConfig):
        # The class (transformers 5.24) never asks for the factors of long texts.
        of = t.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"]
        for module in model.modules():
            if type(module).__name__ == "PhimoeRotaryEmbedding":
                module.rope_init_fn = lambda config, *_, **__: of(config, None, seq_len=len(tokens))
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def drawn(of, more, seed):
    """A model and a text, with how far each greedy token is ahead at least: below zero where one is special."""
    torch.manual_seed(seed)
    model = t.AutoModelForCausalLM.from_config(of(**SIZES | more)).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(0.0, 0.3 if weight.dim() > 1 else 0.1)
            if key.endswith(("norm.weight", "layernorm.weight")): weight.add_(1.0)
        model = model.to(torch.bfloat16).float()
        text = torch.randint(3, VOCAB, (LONG,)).tolist()
        grown, margin = text[:SHORT], 9.0
        for _ in range(GREEDY):
            first, second = logits(model, grown)[-1].topk(2)[0].tolist()
            grown.append(int(logits(model, grown)[-1].argmax()))
            margin = min(margin, first - second if grown[-1] > 2 else -1.0)
    return min(margin, 0.02 * len(set(grown[SHORT:]))), model, text, grown


def main():
    for name, (of, more) in CASES.items():
        margin, model, text, grown = max((drawn(of, more, seed) for seed in range(12)), key=lambda found: found[0])
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model.bfloat16().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"): shutil.copy(HERE.parent / "tiny/llama3" / file, folder / file)
        model = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        short = text[:SHORT]
        with torch.no_grad():
            golden = dict(short=torch.tensor(short, dtype=torch.int32), short_logits=logits(model, short).contiguous(),
                          long=torch.tensor(text, dtype=torch.int32), long_logits=logits(model, text)[-ROWS:].contiguous(),
                          greedy=torch.tensor(grown[SHORT:], dtype=torch.int32))
        save_file(golden, folder / "golden.safetensors")
        print(name, round(margin, 3), grown[SHORT:])


main()
