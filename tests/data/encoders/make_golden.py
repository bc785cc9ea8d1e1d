"""Makes the tiny encoders, rerankers and classifiers beside it and what independent implementations compute with them.

    pip install torch transformers sentence-transformers safetensors tokenizers gguf numpy
    python make_golden.py            # all cases, or: python make_golden.py bert-mean roberta; each with its GGUF twins

Each folder is a random checkpoint laid out as users download it (the file names, config keys and tensor names are those of the
published models of its family, not those the newest library would save) and `golden.json`, computed in float32:

    source      what computed it
    hidden      [{text | pair, tokens, types?, last_hidden_state}]   one row of floats for each token (bert-splade: `logits`)
    embeddings  [{text, prompt_name? | prompt? | instruction?, pooling?, truncate_dim?, normalize?, vector}]   SentenceTransformer.encode;
                no prompt_name means the default prompt where the folder names one, `prompt` is a literal prefix ("" for none),
                `pooling` reads poolings/<it>/config.json in place of 1_Pooling/config.json
    scores      [{text | pair | (query, document, instruction?), logits, probabilities, predict?, tokens, types?}]   predict: CrossEncoder.predict's
                default; qwen3-reranker: both of [no, yes], and prefix, suffix and instruction stand beside `scores`
    sparse      [{text, weights: {token id: weight}}]   weights above zero

The .gguf files are the same weights (matrices in F16) as llama.cpp's converter writes them; qwen3-embedding-without-eos.gguf is of the
older kind that does not say that <|endoftext|> is to be appended.

Every vector is computed from its text alone and must come out the same from one padded batch of all texts: to 1e-5, 3e-5 for
qwen3-reranker's logits, 5e-5 for the rows of `hidden`. Every weight is a multiple of 1/256 below 1 (norms: of 1/64, around 1), so F32,
F16 and BF16 hold it exactly. Where a case calls check_matters, changing any tensor (but biases of keys, which the softmax takes out
again, and poolers nobody reads) or any setting it lists changes the result, or the script stops.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "make"))
import bert_family, rotary_family, decoders  # noqa: F401  each registers its cases
from reference import CASES
from twins import TWINS

for name in sys.argv[1:] or CASES:
    CASES[name]()
    if name in TWINS: TWINS[name]()
