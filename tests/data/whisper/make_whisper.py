"""Makes the tiny Whisper models in this folder, and what the transformers library computes with them.

    pip install torch transformers safetensors tokenizers
    OMP_NUM_THREADS=1 python make_whisper.py

Each folder has a random model of the library's own class as the library saves it, with windows of 6 seconds, and its tokenizer.
`golden.safetensors` has of the sound that `sound` makes: every seventh frame of `mel`, every ninth row that the encoder gives
(`encoded`), and the `logits` of all `tokens` after the prompt. `golden.json` has those tokens, drawn greedily (`greedy`), and
those that are drawn under the library's own rules of timestamps and suppression (`ruled`); and those of the sound's frames with zeros behind
them (`ruled_alone`), which is how faster-whisper fills a window, where the extractor goes on with silence.

`ctranslate2` has what CTranslate2's own converter makes of `turbo` (pip install ctranslate2): for each of float16, int8 and bfloat16

    ct2-transformers-converter --model turbo --output_dir converted --quantization int8 && cp converted/model.bin ctranslate2/int8.bin

and `config.json` of the first.
"""
import json, shutil
from pathlib import Path

import numpy as np, torch, transformers as t
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor, SuppressTokensLogitsProcessor, WhisperTimeStampLogitsProcessor)

HERE = Path(__file__).parent
SECONDS, ROWS, GREEDY = 6, 300, 40
LANGUAGES = ["en", "zh", "de"]
CASES = {
    # Of tiny's kind: a number of its own for each side's layers.
    "small": (80, torch.float32, dict(encoder_layers=2, decoder_layers=3), 7),
    # Of large-v3-turbo's: more bands, and fewer layers that write.
    "turbo": (128, torch.float16, dict(encoder_layers=3, decoder_layers=2), 11),
}


def sound(samples):
    n = np.arange(samples, dtype=np.float64)
    voice = 0.3 * np.sin(0.05 * n + 3 * np.sin(0.0007 * n)) * (0.5 + 0.5 * np.sin(0.001 * n))
    noise = ((n * n * 7919) % 1000) / 1000 - 0.5
    return (voice + 0.05 * noise).astype(np.float32)


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", "i"), ("i", "s"), ("t", "h"), ("Ġ", "t"), ("Ġ", "-"), ("Ġ", "'")]
    for a, b in merges: words[a + b] = len(words)
    made = Tokenizer(models.BPE(words, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|startoftranscript|>", *[f"<|{code}|>" for code in LANGUAGES], "<|translate|>", "<|transcribe|>",
               "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", *[f"<|{i * 0.02:.2f}|>" for i in range(ROWS + 1)]]
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return made


def make(name, mels, dtype, layers, seed):
    torch.manual_seed(seed)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    words = tokenizer()
    words.save(str(folder / "tokenizer.json"))
    of = words.token_to_id
    eot, sot, plain = of("<|endoftext|>"), of("<|startoftranscript|>"), of("<|notimestamps|>")
    config = t.WhisperConfig(vocab_size=words.get_vocab_size(), num_mel_bins=mels, d_model=32, encoder_attention_heads=2, decoder_attention_heads=2,
                             encoder_ffn_dim=48, decoder_ffn_dim=64, max_source_positions=ROWS, max_target_positions=64, init_std=0.3,
                             bos_token_id=eot, eos_token_id=eot, pad_token_id=eot, decoder_start_token_id=sot, **layers)
    model = t.WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    suppressed = [1, 5, 9, of("<|translate|>"), of("<|transcribe|>"), sot, of("<|startoflm|>"), of("<|startofprev|>"), of("<|nospeech|>")]
    generation = t.GenerationConfig(eos_token_id=eot, bos_token_id=eot, pad_token_id=eot, decoder_start_token_id=sot, no_timestamps_token_id=plain, max_initial_timestamp_index=50,
                                    suppress_tokens=suppressed, begin_suppress_tokens=[of("Ġ"), eot], is_multilingual=True, alignment_heads=[[0, 1], [1, 0]])
    model.generation_config = generation
    extractor = t.WhisperFeatureExtractor(feature_size=mels, chunk_length=SECONDS)
    samples = sound(int(4.3 * 16000))
    mel = torch.tensor(extractor(samples, sampling_rate=16000, return_tensors="np")["input_features"])
    prompt = [sot, of("<|de|>"), of("<|transcribe|>")]
    with torch.no_grad():
        encoded = model.model.encoder(mel).last_hidden_state
        alone = mel.clone()
        alone[:, :, len(samples) // extractor.hop_length:] = 0

        def logits_of(tokens, encoded=encoded): return model(encoder_outputs=(encoded,), decoder_input_ids=torch.tensor([tokens])).logits[0]

        greedy = prompt + [plain]
        for _ in range(GREEDY): greedy.append(int(logits_of(greedy)[-1].argmax()))
        logits = logits_of(greedy)
        rules = [SuppressTokensLogitsProcessor(suppressed), SuppressTokensAtBeginLogitsProcessor([of("Ġ"), eot], len(prompt)),
                 WhisperTimeStampLogitsProcessor(generation, begin_index=len(prompt))]

        def ruled_of(encoded):
            ruled = list(prompt)
            while len(ruled) < len(prompt) + 32 and ruled[-1] != eot:
                scores = logits_of(ruled, encoded)[-1:]
                for rule in rules: scores = rule(torch.tensor([ruled]), scores)
                ruled.append(int(scores[0].argmax()))
            return ruled

        ruled, ruled_alone = ruled_of(encoded), ruled_of(model.model.encoder(alone).last_hidden_state)
    model.to(dtype).save_pretrained(folder)
    numbers = {"mel": mel[0].T[::7].contiguous(), "encoded": encoded[0, ::9].contiguous(), "logits": logits.contiguous()}
    save_file(numbers, str(folder / "golden.safetensors"))
    (folder / "golden.json").write_text(json.dumps({"samples": len(samples), "greedy": greedy, "ruled": ruled, "ruled_alone": ruled_alone}) + "\n")
    print(name, greedy[4:16], ruled)


for name, (mels, dtype, layers, seed) in CASES.items(): make(name, mels, dtype, layers, seed)
