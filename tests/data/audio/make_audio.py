"""Makes the tiny models that hear in this folder, and what the transformers library computes of sounds with them.

    pip install torch transformers safetensors tokenizers
    OMP_NUM_THREADS=1 python make_audio.py          # all, or: python make_audio.py voxtral

Each folder has a random model of the library's own class as the library saves it, its tokenizer and its feature extractor.
`golden.json` lists conversations with sounds (of so many samples, of 16 kHz, each with a pitch; `sound` makes them) and what the
processor and the whole class make of them: the prompt's `tokens`, and the 32 `greedy` tokens after it. `golden.safetensors` has, by
the conversation's number, the `logits` from the prompt's last token on, the `rows` that take the sounds' places, and of the first
sound's first window every seventh frame and the last, the `features`.

Windows are of two seconds. Voxtral's own processor needs mistral-common, which is not used: messages are written as its seventh
version of them has it, and features are cut as that processor cuts them. Its folder has no chat template, as its makers' has none.
"""
import json, shutil, sys
from pathlib import Path

import numpy as np, torch, transformers as t
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent
GREEDY, SECONDS, RATE = 32, 2, 16_000
# As Qwen2-Audio's instruct model publishes it.
QWEN = ("{% set audio_count = namespace(value=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
        "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
        "{% else %}{% for content in message['content'] %}{% if 'audio' in content or 'audio_url' in content or message['type'] == 'audio' %}"
        "{% set audio_count.value = audio_count.value + 1 %}Audio {{ audio_count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n{% elif 'text' in content %}"
        "{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# Qwen3-ASR's, whose system prompt is words to expect.
ASR = ("<|im_start|>system\n{% for message in messages %}{% if message['role'] == 'system' %}{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}{{ part['text'] }}"
       "{% endfor %}{% endif %}{% endif %}{% endfor %}<|im_end|>\n{% for message in messages %}{% if message['role'] != 'system' %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}{% else %}"
       "{% for part in message['content'] %}{% if part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endif %}{% endfor %}"
       "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024, rope_parameters=PLAIN)
CASES = {
    "qwen2_audio": dict(config=t.Qwen2AudioConfig, model=t.Qwen2AudioForConditionalGeneration, dtype=torch.bfloat16, mels=24, token="<|AUDIO|>",
                        special=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], ends=dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"),
                        text=dict(TEXT, model_type="qwen2"), tower=dict(d_model=48, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=80), name="audio_token_index"),
    "voxtral": dict(config=t.VoxtralConfig, model=t.VoxtralForConditionalGeneration, dtype=torch.bfloat16, mels=16, token="[AUDIO]",
                    special=["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AUDIO]", "[BEGIN_AUDIO]"], ends=dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"),
                    text=dict(TEXT, model_type="llama", head_dim=32), tower=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128), name="audio_token_id"),
    "qwen3_asr": dict(config=t.Qwen3ASRConfig, model=t.Qwen3ASRForConditionalGeneration, dtype=torch.bfloat16, mels=20, token="<|audio_pad|>",
                      special=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"], ends=dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"), tied=True,
                      text=dict(TEXT, model_type="qwen3", head_dim=32), tower=dict(d_model=48, encoder_layers=2, encoder_attention_heads=3, encoder_ffn_dim=80, n_window_infer=100 * SECONDS, downsample_hidden_size=8, output_dim=64), name="audio_token_id"),
}
# Texts, and sounds: samples and a pitch. Qwen2-Audio hears one window, Voxtral as many as there are.
TALKS = {
    "qwen2_audio": [
        [("user", [[9_000, 1], "What is this?"])],
        [("user", ["First ", [32_000, 2], " then ", [16_013, 3], "\nwhich is # longer?"])],
        [("system", ["Be brief."]), ("user", [[400, 4], "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", [31_790, 5]])],
    ],
    "voxtral": [
        [("user", [[9_000, 1], "What is this?"])],
        [("user", ["First ", [40_000, 2], " then ", [32_000, 3], "\nwhich is # longer?"])],
        [("system", ["Be brief."]), ("user", [[1, 4], "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", [31_790, 5]])],
    ],
    "qwen3_asr": [
        [("user", [[9_000, 1], "What is this?"])],
        [("user", ["First ", [70_300, 2], " then ", [32_000, 3], "\nwhich is # longer?"])],
        [("system", ["Be brief."]), ("user", [[1, 4], "Well?"]), ("assistant", ["A line."]), ("user", ["And now?", [40_123, 5]])],
    ],
}


def sound(samples, pitch):
    n = np.arange(samples, dtype=np.float64)
    voice = 0.3 * np.sin(0.03 * (1 + pitch) * n + 3 * np.sin(0.0007 * n)) * (0.5 + 0.5 * np.sin(0.001 * n))
    noise = (np.arange(samples, dtype=np.int64) ** 2 * 7919) % 1000 / 1000 - 0.5
    return (voice + 0.05 * noise).astype(np.float32)


def tokenizer(case, special):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "i"), ("i", "s"), ("t", "h"), ("Ċ", "Ċ"), ("Ġ", "t")]
    for a, b in merges: words[a + b] = len(words)
    made = Tokenizer(models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return t.PreTrainedTokenizerFast(tokenizer_object=made, **(case["ends"] if special else {}))


def windows(name, extractor, pcm):
    """Features as the families' processors make them, and the rows that each window becomes."""
    if name == "qwen2_audio":
        made = extractor(pcm, sampling_rate=RATE, return_attention_mask=True, padding="max_length", return_tensors="pt")
        length = int(made["attention_mask"].sum())
        return made["input_features"], made["attention_mask"], (((length - 1) // 2 + 1) - 2) // 2 + 1
    if name == "qwen3_asr":
        made = extractor(pcm, sampling_rate=RATE, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt")
        length = int(made["attention_mask"].sum())
        halved = lambda frames: (((frames + 1) // 2 + 1) // 2 + 1) // 2
        return made["input_features"], made["attention_mask"], length // 100 * 13 + halved(length % 100)
    made = extractor(pcm, sampling_rate=RATE, padding=True, truncation=False, pad_to_multiple_of=SECONDS * RATE, return_tensors="pt")["input_features"]
    cut = made.reshape(extractor.feature_size, -1, 100 * SECONDS).transpose(0, 1)
    return cut, None, cut.shape[0] * 25


def prompt_of(name, case, words, plain, talk, counts):
    """Its tokens: text is never a control token, whatever it spells."""
    mark = lambda token: [words.convert_tokens_to_ids(token)]
    text = lambda said: plain.encode(said.replace("#", case["token"])).ids
    counts = iter(counts)
    tokens = []
    if name == "qwen2_audio":
        number = 0
        if talk[0][0] != "system": tokens += mark("<|im_start|>") + text("system\nYou are a helpful assistant.") + mark("<|im_end|>") + text("\n")
        for role, parts in talk:
            tokens += mark("<|im_start|>") + text(f"{role}\n")
            run = ""
            for part in parts:
                if isinstance(part, str): run += part; continue
                number += 1
                tokens += text(f"{run}Audio {number}: ") + mark("<|audio_bos|>") + mark("<|AUDIO|>") * next(counts) + mark("<|audio_eos|>")
                run = "\n"
            tokens += text(run) + mark("<|im_end|>") + text("\n")
        return tokens + mark("<|im_start|>") + text("assistant\n")
    if name == "qwen3_asr":
        own = "".join(part for role, parts in talk if role == "system" for part in parts)
        tokens += mark("<|im_start|>") + text(f"system\n{own}") + mark("<|im_end|>") + text("\n")
        for role, parts in talk:
            if role == "system": continue
            tokens += mark("<|im_start|>")
            run = f"{role}\n"
            for part in parts:
                if isinstance(part, str): run += part; continue
                tokens += text(run) + mark("<|audio_start|>") + mark("<|audio_pad|>") * next(counts) + mark("<|audio_end|>")
                run = ""
            tokens += text(run) + mark("<|im_end|>") + text("\n")
        return tokens + mark("<|im_start|>") + text("assistant\n")
    tokens += mark("<s>")
    for role, parts in talk:
        tokens += {"system": mark("[SYSTEM_PROMPT]"), "user": mark("[INST]"), "assistant": []}[role]
        for part in parts:
            tokens += text(part) if isinstance(part, str) else mark("[BEGIN_AUDIO]") + mark("[AUDIO]") * next(counts)
        tokens += {"system": mark("[/SYSTEM_PROMPT]"), "user": mark("[/INST]"), "assistant": mark("</s>")}[role]
    return tokens


def drawn(name, seed, words, plain, extractor):
    case = CASES[name]
    torch.manual_seed(seed)
    audio_token = words.convert_tokens_to_ids(case["token"])
    ids = dict(bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)
    config = case["config"](text_config=dict(case["text"], vocab_size=len(words), tie_word_embeddings=case.get("tied", False), **ids),
                            audio_config=dict(case["tower"], num_mel_bins=case["mels"], **({} if name == "qwen3_asr" else dict(max_source_positions=50 * SECONDS))),
                            **(dict(eos_token_id=ids["eos_token_id"], pad_token_id=ids["pad_token_id"]) if name == "qwen3_asr" else {}), **{case["name"]: audio_token})
    config._attn_implementation = "eager"
    model = case["model"](config).float().eval()
    for part in (config.audio_config, config.text_config): part._attn_implementation = "eager"
    with torch.no_grad():
        for key, p in model.named_parameters():
            x = torch.randn(p.shape)
            if "norm" in key: x = 0.2 * x + (0 if key.endswith("bias") else 1)
            elif key.endswith("bias"): x = 0.2 * x
            elif "embed_tokens" in key: x = 0.16 * x
            elif "embed_positions" in key: x = 0.3 * x
            elif "conv1" in key: x = 0.15 * x
            elif "conv2" in key: x = 0.12 * x
            elif "conv2d" in key: x = 0.3 * x
            elif "conv_out" in key: x = 0.1 * x
            elif "projector" in key: x = (0.05 if "linear_1" in key or name == "qwen2_audio" else 0.08) * x
            else: x = 0.2 * x
            p.copy_(x.to(case["dtype"]).float())
        found, margin = [], 1e9
        for talk in TALKS[name]:
            made = [windows(name, extractor, sound(*part)) for _, parts in talk for part in parts if not isinstance(part, str)]
            longest = max(one[0].shape[2] for one in made)
            filled = lambda numbers: torch.nn.functional.pad(numbers, (0, longest - numbers.shape[-1]))
            features = torch.cat([filled(one[0]) for one in made])
            more = dict(input_features=features)
            if name == "qwen2_audio": more["feature_attention_mask"] = torch.cat([one[1] for one in made])
            if name == "qwen3_asr": more["input_features_mask"] = torch.cat([filled(one[1]) for one in made])
            tokens = prompt_of(name, case, words, plain, talk, [one[2] for one in made])
            kept = []
            hook = model.model.multi_modal_projector.register_forward_hook(lambda module, given, out: kept.append(out))
            all_tokens = torch.tensor([tokens])
            for _ in range(GREEDY):
                best = model(input_ids=all_tokens, attention_mask=torch.ones_like(all_tokens), use_cache=False, **more).logits[0, -1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                # The class takes a placeholder that is drawn for a sound.
                if int(best.indices[0]) == audio_token: hook.remove(); return None
                all_tokens = torch.cat([all_tokens, best.indices[:1].view(1, 1)], dim=1)
            logits = model(input_ids=all_tokens[:, :-1], attention_mask=torch.ones_like(all_tokens[:, :-1]), use_cache=False, **more).logits[0, len(tokens) - 1:].float()
            hook.remove()
            rows = kept[-1]
            rows = torch.cat([one[:count[2]] for one, count in zip(rows, made)]) if name == "qwen2_audio" else rows
            # Qwen3-ASR's frames end with the sound.
            end = min(int(made[0][1].sum()), 100 * SECONDS) if name == "qwen3_asr" else features.shape[2]
            found.append((tokens, all_tokens[0, len(tokens):].tolist(), logits, rows.reshape(-1, 64).float(), torch.cat([features[0, :, :end:7], features[0, :, end - 1:end]], dim=1).T.float()))
    return model, found, margin / float(found[0][2].max() - found[0][2].min())


def make(name):
    case = CASES[name]
    words, plain = tokenizer(case, case["special"]), tokenizer(case, [])._tokenizer
    extractor = t.Qwen3ASRFeatureExtractor(feature_size=case["mels"]) if name == "qwen3_asr" else t.WhisperFeatureExtractor(feature_size=case["mels"], chunk_length=SECONDS, return_attention_mask=name == "qwen2_audio")
    end = words.eos_token_id
    told = lambda drawn: min(min(len(set(found[1])), 8) for found in drawn[1]) * all(end not in found[1] for found in drawn[1])
    model, found, margin = max(filter(None, (drawn(name, seed, words, plain, extractor) for seed in range(24))), key=lambda drawn: (told(drawn), drawn[2]))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True); folder.mkdir()
    model.to(case["dtype"]).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    words.save_pretrained(folder)
    if name == "qwen2_audio":
        processor = t.Qwen2AudioProcessor(extractor, words, chat_template=QWEN)
        processor.save_pretrained(folder)
        check(processor, words, found)
    else:
        extractor.save_pretrained(folder)
        if name == "qwen3_asr": (folder / "chat_template.jinja").write_text(ASR)
    talks = [{"messages": [{"role": role, "parts": [part.replace("#", case["token"]) if isinstance(part, str) else part for part in parts]} for role, parts in talk], "tokens": one[0], "greedy": one[1]} for talk, one in zip(TALKS[name], found)]
    (folder / "golden.json").write_text(json.dumps(talks) + "\n")
    tensors = {f"{kind}.{index}": one[place].contiguous() for index, one in enumerate(found) for kind, place in (("logits", 2), ("rows", 3))}
    save_file(tensors | {f"features.{index}": one[4].contiguous() for index, one in enumerate(found)}, folder / "golden.safetensors")
    print(name, "margin", round(margin, 5), [len(set(one[1])) for one in found], [len(one[0]) for one in found], [tuple(one[3].shape) for one in found], "range of rows", float(found[0][3].min()), float(found[0][3].max()), found[0][1][:6], found[1][1][:6])


def check(processor, words, found):
    """That the prompts are those of the library's own processor, where nothing spells a control token."""
    for number in (0, 2):
        talk = TALKS["qwen2_audio"][number]
        messages = [{"role": role, "content": [{"type": "text", "text": part} if isinstance(part, str) else {"type": "audio", "audio_url": ""} for part in parts]} for role, parts in talk]
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        sounds = [sound(*part) for _, parts in talk for part in parts if not isinstance(part, str)]
        assert processor(text=text, audio=sounds, sampling_rate=RATE, return_tensors="pt")["input_ids"][0].tolist() == found[number][0], number


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES: make(name)
