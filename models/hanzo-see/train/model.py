"""The model's settings and files, and its arithmetic with nothing that training does not need."""
import random
from pathlib import Path

import torch, torch.nn.functional as F
import transformers as t
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pictures import FRAME
from talks import ROWS, SPECIAL, TEMPLATE, lines

WORDS = 448                               # of the vocabulary, control tokens apart
TOWER = dict(hidden_size=128, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4, image_size=FRAME, patch_size=8)
TEXT = dict(model_type="llama", hidden_size=192, intermediate_size=384, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, head_dim=64,
            max_position_embeddings=1024, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4})


def make_tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(lines(random.Random(1)), trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return made


def make_model(tokenizer):
    end, start, pad = (tokenizer.token_to_id(token) for token in ("<end_of_utterance>", "<|im_start|>", "<|endoftext|>"))
    ids = dict(bos_token_id=start, eos_token_id=end, pad_token_id=pad)
    config = t.Idefics3Config(text_config=dict(TEXT, vocab_size=tokenizer.get_vocab_size(), **ids), vision_config=dict(TOWER), scale_factor=2,
                              tie_word_embeddings=True, image_token_id=tokenizer.token_to_id("<image>"), pad_token_id=pad)
    model = t.Idefics3ForConditionalGeneration(config).float()
    for name, p in model.named_parameters():
        if p.dim() < 2: continue
        layers = (TEXT if "text_model" in name else TOWER)["num_hidden_layers"]
        adds = name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight"))
        torch.nn.init.normal_(p, std=0.05 if "embed_tokens" in name or "position" in name else (p[0].numel() * (2 * layers if adds else 1)) ** -0.5)
    return model


def save(model, tokenizer, folder):
    """All files, as transformers reads them, with weights in bfloat16."""
    folder = Path(folder)
    model.generation_config = t.GenerationConfig(do_sample=False, bos_token_id=tokenizer.token_to_id("<|im_start|>"), eos_token_id=tokenizer.token_to_id("<end_of_utterance>"), pad_token_id=tokenizer.token_to_id("<|endoftext|>"))
    model.save_pretrained(folder)
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    words = t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<end_of_utterance>", pad_token="<|endoftext|>")
    side = {"longest_edge": FRAME}
    processor = Idefics3Processor(Idefics3ImageProcessorPil(do_image_splitting=False, size=side, max_image_size=side), words, image_seq_len=ROWS, chat_template=TEMPLATE)
    processor.save_pretrained(folder)


def tower(model, pixels):
    """(pictures, 3, FRAME, FRAME) from -1 to 1 to (pictures, ROWS, hidden size of the text model)."""
    vision = model.model.vision_model
    heads = TOWER["num_attention_heads"]
    x = vision.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
    x = x + vision.embeddings.position_embedding.weight
    for layer in vision.encoder.layers:
        a, y = layer.self_attn, layer.layer_norm1(x)
        q, k, v = (part(y).unflatten(2, (heads, -1)).transpose(1, 2) for part in (a.q_proj, a.k_proj, a.v_proj))
        x = x + a.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + layer.mlp.fc2(F.gelu(layer.mlp.fc1(layer.layer_norm2(x)), approximate="tanh"))
    return model.model.connector(vision.post_layernorm(x))


def text(model, ids, rows, after=2):
    """Hidden states of (talks, LENGTH) ids, where rows take the placeholders' places in order, and those after so many layers."""
    net = model.model.text_model
    x = net.embed_tokens(ids)
    x = x.masked_scatter((ids == model.config.image_token_id).unsqueeze(2), rows.reshape(-1, rows.shape[2]).to(x.dtype))
    count, heads, groups, eps = ids.shape[1], TEXT["num_attention_heads"], TEXT["num_key_value_heads"], TEXT["rms_norm_eps"]
    width = TEXT["head_dim"]
    turn = torch.outer(torch.arange(count, device=x.device), 1e4 ** (-torch.arange(0, width, 2, device=x.device) / width))
    cos, sin = (part.repeat(1, 2) for part in (turn.cos(), turn.sin()))
    norm = lambda part, y: F.rms_norm(y, (y.shape[-1],), part.weight.to(y.dtype), eps)
    for index, layer in enumerate(net.layers):
        if index == after: middle = x
        a, y = layer.self_attn, norm(layer.input_layernorm, x)
        q, k, v = (part(y).unflatten(2, (number, width)).transpose(1, 2) for part, number in ((a.q_proj, heads), (a.k_proj, groups), (a.v_proj, groups)))
        c, s = cos.to(q.dtype), sin.to(q.dtype)
        q, k = (part * c + torch.cat((-part[..., width // 2:], part[..., :width // 2]), -1) * s for part in (q, k))
        k, v = (part.repeat_interleave(heads // groups, 1) for part in (k, v))
        x = x + a.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = norm(layer.post_attention_layernorm, x)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
    return norm(net.norm, x), middle
