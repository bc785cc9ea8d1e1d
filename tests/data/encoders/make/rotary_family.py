"""Encoders without a table of positions: rotary (modernbert, nomic_bert, gte's `new`) and ALiBi (jina's bert)."""
import math

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BertConfig, BertModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput

import tokens
from bert_family import BERT_TOKENS, LABELS, ROBERTA_TOKENS, XLM_R_TEMPLATE, roberta_tokenizer, softmax
from reference import *

MODERNBERT = {"architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
              "cls_token_id": 0, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": 1, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
              "hidden_activation": "gelu", "hidden_size": 32, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 24, "layer_norm_eps": 1e-5, "local_attention": 8, "local_rope_theta": 10000.0,
              "max_position_embeddings": 64, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-5, "num_attention_heads": 4, "num_hidden_layers": 4, "pad_token_id": 3,
              "position_embedding_type": "absolute", "reference_compile": None, "sep_token_id": 1, "sparse_pred_ignore_index": -100, "sparse_prediction": False, "torch_dtype": "float32", "transformers_version": "4.48.0", "vocab_size": 0}
MODERNBERT_TOKENS = {"clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "mask_token": "[MASK]", "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 64, "pad_token": "[PAD]", "sep_token": "[SEP]",
                     "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}


def modernbert_tokenizer():
    tokenizer = tokens.byte_bpe(330, first=["[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"])
    tokenizer.normalizer = tokens.normalizers.NFC()
    tokenizer.post_processor = tokens.processors.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    return tokenizer


@case
def modernbert():
    """As gte-modernbert-base: global, local, local, global layers; 4 tokens to each side in the local ones; two rope bases; layer 0 has no attn_norm."""
    folder, model, hf = checkpoint("modernbert", MODERNBERT, AutoModel, modernbert_tokenizer(), MODERNBERT_TOKENS, 21, dtype=torch.float16)
    st_files(folder, 32, ("cls",), normalize=False, max_seq_length=64, prompts={})
    check_matters(model, probe(hf, 64), settings=[("hidden_activation", "gelu_new"), ("local_attention", 10), ("local_attention", 6), ("rope_parameters.full_attention.rope_theta", 10000.0), ("rope_parameters.sliding_attention.rope_theta", 160000.0)])
    st = sentence_transformer(folder)
    embeddings = embed(st, TEXTS + [{"text": FOX, "normalize": True}], sides=("right", "left"))
    differ(embeddings[:7], "modernbert")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, OVER]), "embeddings": embeddings})


def modernbert_classifier_of(name, pooling, seed):
    config = MODERNBERT | LABELS | {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": pooling}
    folder, model, hf = checkpoint(name, config, AutoModelForSequenceClassification, modernbert_tokenizer(), MODERNBERT_TOKENS, seed, [("classifier.weight", 0.5)], dtype=torch.float16)
    check_matters(model, probe(hf, 64), settings=[("classifier_pooling", "cls" if pooling == "mean" else "mean"), ("classifier_activation", "relu")])
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, TEXTS, softmax)})


@case
def modernbert_classifier():
    """The mean of all tokens through dense, gelu, norm, classifier."""
    modernbert_classifier_of("modernbert-classifier", "mean", 22)


@case
def modernbert_classifier_cls():
    """The first token through dense, gelu, norm, classifier."""
    modernbert_classifier_of("modernbert-classifier-cls", "cls", 23)


# ---------------------------------------------------------------- models the library does not have

class Written(nn.Module):
    """A model written in plain torch that `checkpoint` and sentence-transformers take for one of the library's."""

    @property
    def device(self): return torch.device("cpu")

    @property
    def dtype(self): return torch.float32

    @classmethod
    def from_config(cls, config, **_): return cls(config)
    _from_config = from_config

    @classmethod
    def from_pretrained(cls, folder, **_):
        model = cls(AutoConfig.from_pretrained(folder))
        missing, unexpected = model.load_state_dict(load_file(Path(folder) / "model.safetensors"), strict=False)
        return model, {"missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": []}


def written_sentence_transformer(folder, model, library):
    """sentence-transformers around it: a BertModel of the same width is loaded and put aside."""
    at = library_folder(folder, library | {"vocab_size": model.config.vocab_size})
    BertModel(BertConfig.from_pretrained(at, max_position_embeddings=64)).save_pretrained(at)
    st = sentence_transformer(at)
    st[0].model = model
    assert st[0].model is model
    return st


# ---------------------------------------------------------------- nomic_bert

NOMIC = {"activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "auto_map": {"AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig", "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
         "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
         "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 32, "n_head": 4, "n_inner": 40, "n_layer": 2, "n_positions": 8192, "pad_vocab_size_multiple": 64,
         "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
         "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.0,
         "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True,
         "use_rms_norm": False, "use_xentropy": True, "vocab_size": 0}
NOMIC_LIBRARY = {"model_type": "nomic_bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "hidden_act": "silu", "max_position_embeddings": 8192, "type_vocab_size": 2,
                 "layer_norm_eps": 1e-12, "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}


def nomic_names(weights):
    """The published tensors: query, key and value in one, fc11 for the linear half and fc12 for the gate."""
    out = {}
    for layer in range(2):
        at = f"layers.{layer}."
        take = lambda name: weights[at + name]
        out |= {f"encoder.{at}attn.Wqkv.weight": torch.cat([take(f"self_attn.{p}_proj.weight") for p in "qkv"]), f"encoder.{at}attn.out_proj.weight": take("self_attn.o_proj.weight"),
                f"encoder.{at}mlp.fc11.weight": take("mlp.up_proj.weight"), f"encoder.{at}mlp.fc12.weight": take("mlp.gate_proj.weight"), f"encoder.{at}mlp.fc2.weight": take("mlp.down_proj.weight")}
        for kind in ("weight", "bias"): out |= {f"encoder.{at}norm1.{kind}": take(f"post_attention_layernorm.{kind}"), f"encoder.{at}norm2.{kind}": take(f"post_mlp_layernorm.{kind}")}
    for kind in ("weight", "bias"): out[f"emb_ln.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
    return out | {f"embeddings.{n}.weight": weights[f"embeddings.{n}.weight"] for n in ("word_embeddings", "token_type_embeddings")}


@case
def nomic_bert():
    """As nomic-embed-text-v1.5 (GPT-2's config keys). The library reads the same model.safetensors with the settings in its own words."""
    folder, model, hf = checkpoint("nomic-bert", NOMIC, AutoModel, tokens.wordpiece(size=180), BERT_TOKENS | {"model_max_length": 8192}, 24, rename=nomic_names, library=NOMIC_LIBRARY, dtype=torch.float16)
    st_files(folder, 32, max_seq_length=64, normalize=False)
    check_matters(model, probe(hf, 64), settings=[("rope_parameters.rope_theta", 10000.0), ("hidden_act", "gelu")])
    st = sentence_transformer(library_folder(folder, NOMIC_LIBRARY | {"vocab_size": model.config.vocab_size}))
    embeddings = embed(st, TEXTS + ["search_query: " + FOX, {"text": FOX, "truncate_dim": 16, "normalize": True}])
    differ(embeddings[:7], "nomic-bert")
    finish(folder, {"source": source(model, "SentenceTransformer"), "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings})


NOMIC_MOE = NOMIC | {"activation_function": "gelu", "expert_choice_router": False, "ffn_div": 1, "layer_norm_epsilon": 1e-5, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2, "moe_impl": "megablocks",
                     "moe_normalize_expert_weights": False, "moe_top_k": 2, "n_layer": 4, "n_positions": 2048, "num_experts": 8, "num_shared_experts": 0, "pad_token_id": 1, "qkv_proj_bias": True, "rotary_emb_base": 10000,
                     "router_aux_loss_coef": 0.1, "type_vocab_size": 1, "use_rms_norm": None}
NOMIC_MOE_LIBRARY = {k: v for k, v in NOMIC_MOE.items() if k != "auto_map"} | {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}


class NomicAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.Wqkv, self.out_proj = nn.Linear(c.n_embd, 3 * c.n_embd), nn.Linear(c.n_embd, c.n_embd)
        self.heads, self.base = c.n_head, c.rotary_emb_base

    def forward(self, x, bias):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.Wqkv(x).chunk(3, -1))
        size = q.shape[-1]
        angles = torch.arange(x.shape[1])[:, None] / self.base ** (torch.arange(0, size, 2) / size)
        cos, sin = angles.cos(), angles.sin()
        def turned(t):
            a, b = t.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        mixed = torch.softmax(turned(q) @ turned(k).transpose(-1, -2) / math.sqrt(size) + bias, -1) @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class NomicFeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c.n_embd, c.n_inner), nn.Linear(c.n_inner, c.n_embd)
        self.act = ACT2FN[c.activation_function]

    def forward(self, x): return self.fc2(self.act(self.fc1(x)))


class NomicMixture(nn.Module):
    """Every expert computes every token; the weights of all but the `moe_top_k` likeliest are zero. One bias behind the sum."""

    def __init__(self, c):
        super().__init__()
        self.router = nn.ModuleDict({"layer": nn.Linear(c.n_embd, c.num_experts, bias=False)})
        self.experts = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(c.n_embd))})
        self.experts.mlp = nn.ParameterDict({n: nn.Parameter(torch.zeros(c.num_experts * c.n_inner, c.n_embd)) for n in ("w1", "w2")})
        self.act, self.count, self.best, self.normalize = ACT2FN[c.activation_function], c.num_experts, c.moe_top_k, c.moe_normalize_expert_weights

    def forward(self, x):
        weights, chosen = torch.softmax(self.router["layer"](x), -1).topk(self.best, -1)
        if self.normalize: weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros(*x.shape[:-1], self.count).scatter(-1, chosen, weights)
        w1, w2 = (self.experts.mlp[n].unflatten(0, (self.count, -1)) for n in ("w1", "w2"))
        return sum(shares[..., e, None] * (self.act(x @ w1[e].T) @ w2[e]) for e in range(self.count)) + self.experts["bias"]


class NomicLayer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.attn = NomicAttention(c)
        self.mlp = NomicMixture(c) if index % c.moe_every_n_layers == 1 else NomicFeedForward(c)
        self.norm1, self.norm2 = (nn.LayerNorm(c.n_embd, eps=c.layer_norm_epsilon) for _ in range(2))

    def forward(self, x, bias):
        h = self.norm1(x + self.attn(x, bias))
        return self.norm2(h + self.mlp(h))


class NomicMoeModel(Written):
    """nomic-bert-2048's model with mixtures of experts in every other layer, from the second on."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(c.vocab_size, c.n_embd), "token_type_embeddings": nn.Embedding(c.type_vocab_size, c.n_embd)})
        self.emb_ln = nn.LayerNorm(c.n_embd, eps=c.layer_norm_epsilon)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(NomicLayer(c, i) for i in range(c.n_layer))})

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **_):
        if token_type_ids is None: token_type_ids = torch.zeros_like(input_ids)
        x = self.emb_ln(self.embeddings["word_embeddings"](input_ids) + self.embeddings["token_type_embeddings"](token_type_ids))
        bias = 0 if attention_mask is None else (1 - attention_mask)[:, None, None].float() * -1e30
        for layer in self.encoder["layers"]: x = layer(x, bias)
        return BaseModelOutput(last_hidden_state=x)


@case
def nomic_bert_moe():
    """As nomic-embed-text-v2-moe: layers 1 and 3 send each token to two of eight experts, with one bias behind their sum; XLM-R's tokenizer."""
    settings = {k: v for k, v in ROBERTA_TOKENS.items() if k not in ("add_prefix_space", "errors", "trim_offsets")} | {"model_max_length": 512, "tokenizer_class": "XLMRobertaTokenizer"}
    tokenizer = tokens.unigram(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"], "<unk>", *XLM_R_TEMPLATE)
    folder, model, hf = checkpoint("nomic-bert-moe", NOMIC_MOE, NomicMoeModel, tokenizer, settings, 260, [("router", 0.5), ("out_proj", 0.1), ("bias", 0.1)], library=NOMIC_MOE_LIBRARY, dtype=torch.float16)
    st_files(folder, 32, max_seq_length=64, prompts={"query": "search_query: ", "passage": "search_document: "})
    check_matters(model, probe(hf, 64), settings=[("moe_top_k", 1), ("moe_top_k", 3), ("moe_normalize_expert_weights", True), ("rotary_emb_base", 1000), ("n_head", 8), ("activation_function", "gelu_new")])
    st = written_sentence_transformer(folder, model, NOMIC_MOE_LIBRARY)
    # What the routers say of the tokens of each text that runs alone: no choice is a near thing, and each expert has a token. The seed and
    # the small spreads above are chosen for this.
    said = {1: [], 3: []}
    for i in said: model.encoder["layers"][i].mlp.router["layer"].register_forward_hook(lambda _, x, y, i=i: said[i].append(y[0]) if len(y) == 1 else None)
    embeddings = embed(st, TEXTS + [{"text": t, "prompt_name": "query"} for t in (FOX, OVER)] + [{"text": FOX, "prompt_name": "passage"}, {"text": FOX, "truncate_dim": 16}, {"text": FOX, "truncate_dim": 16, "normalize": True}])
    differ(embeddings[:7], "nomic-bert-moe")
    rows = hidden(model, hf, 64, [FOX, PAIR, LONG])
    for i, logits in said.items():
        likeliest, experts = torch.cat(logits).topk(3, -1)
        assert len(logits) >= len(embeddings) + len(rows) and float((likeliest[:, 1] - likeliest[:, 2]).min()) > MATTERS, (i, "a token between two experts")
        assert experts[:, :2].unique().numel() == 8, (i, "an expert without a token")
    finish(folder, {"source": f"{LIBRARIES}: nomic-bert-2048's NomicBertModel with mixtures of experts written anew in plain torch (rotary_family.py), SentenceTransformer", "hidden": rows, "embeddings": embeddings})


# ---------------------------------------------------------------- gte's new-impl

GTE = {"architectures": ["NewModel"], "attention_probs_dropout_prob": 0.0, "auto_map": {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig", "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}, "classifier_dropout": None,
       "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 40, "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "logn_attention_clip1": False,
       "logn_attention_scale": False, "max_position_embeddings": 64, "model_type": "new", "num_attention_heads": 4, "num_hidden_layers": 2, "pack_qkv": True, "pad_token_id": 0, "position_embedding_type": "rope",
       "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 5000, "torch_dtype": "float32", "transformers_version": "4.39.1", "type_vocab_size": 0, "unpad_inputs": False, "use_memory_efficient_attention": False, "vocab_size": 0}
GTE_LIBRARY = {"model_type": "gte", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "hidden_act": "gelu", "max_position_embeddings": 64, "type_vocab_size": 1, "layer_norm_eps": 1e-12,
               "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


def gte_names(prefix, head=False):
    def rename(weights):
        out = {}
        for layer in range(2):
            theirs, ours = f"layers.{layer}.", f"{prefix}encoder.layer.{layer}."
            at = next(n for n in weights if theirs in n).split("layers.")[0] + theirs
            for kind in ("weight", "bias"):
                out |= {f"{ours}attention.qkv_proj.{kind}": torch.cat([weights[f"{at}self_attn.{p}_proj.{kind}"] for p in "qkv"]), f"{ours}attention.o_proj.{kind}": weights[f"{at}self_attn.o_proj.{kind}"],
                        f"{ours}attn_ln.{kind}": weights[f"{at}post_attention_layernorm.{kind}"], f"{ours}mlp_ln.{kind}": weights[f"{at}post_mlp_layernorm.{kind}"]}
            out |= {f"{ours}mlp.up_gate_proj.weight": torch.cat([weights[f"{at}mlp.{p}_proj.weight"] for p in ("up", "gate")]), f"{ours}mlp.down_proj.weight": weights[f"{at}mlp.down_proj.weight"], f"{ours}mlp.down_proj.bias": weights[f"{at}mlp.down_proj.bias"]}
        for name, w in weights.items():
            if "embeddings." in name: out[prefix + name[name.index("embeddings."):]] = w
            if "pooler.dense" in name: out[prefix + name[name.index("pooler."):]] = w
            if name.startswith("classifier."): out[name] = w
        return out
    return rename


def gte_ntk(model):
    """new-impl's fixed NTK scaling, at every length: the base times the factor, and each frequency divided by factor ^ (2 / head size)."""
    base = model.base_model if hasattr(model, "classifier") else model
    factor, theta, size = 2.0, 5000.0, 8
    base.rotary_emb.inv_freq = 1 / (theta * factor) ** (torch.arange(0, size, 2) / size) / factor ** (2 / size)


@case
def gte_new():
    """As gte-base-en-v1.5: no token types, one up_gate_proj with the linear half first, NTK scaling. The library's gte class (GteModel) has
    neither NTK nor a model without token types, so its table of types is zero and its frequencies are set as new-impl computes them."""
    def without_types(model):
        gte_ntk(model)
        with torch.no_grad(): model.embeddings.token_type_embeddings.weight.zero_()
    def rename(weights): return {k: v for k, v in gte_names("")(weights).items() if "token_type" not in k}
    types = {"embeddings.token_type_embeddings.weight"}
    folder, model, hf = checkpoint("gte-new", GTE, AutoModel, tokens.wordpiece(size=180), BERT_TOKENS, 25, rename=rename, library=GTE_LIBRARY, patch=without_types, absent=types, dtype=torch.float16)
    st_files(folder, 32, ("cls",), normalize=False, max_seq_length=64)
    check_matters(model, probe(hf, 64, types=False), ignore=("token_type", "k_proj.bias"))
    st = sentence_transformer(library_folder(folder, GTE_LIBRARY | {"vocab_size": model.config.vocab_size}))
    scaled, plain = model.rotary_emb.inv_freq, st[0].model.rotary_emb.inv_freq
    assert not torch.equal(scaled, plain)
    before = st.encode(OVER)
    without_types(st[0].model)
    assert abs(before - st.encode(OVER)).max() > MATTERS
    embeddings = embed(st, TEXTS)
    differ(embeddings[:7], "gte-new")
    finish(folder, {"source": source(model, "SentenceTransformer; rotary frequencies set to new-impl's fixed NTK scaling, token type table zero"), "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG], types=False), "embeddings": embeddings})


@case
def gte_new_reranker():
    """As gte-multilingual-reranker-base: NewForSequenceClassification, tensors under `new.`, a tanh pooler, token types of one kind, no scaling."""
    config = GTE | {"architectures": ["NewForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "pad_token_id": 1, "rope_scaling": None, "rope_theta": 20000, "type_vocab_size": 1}
    library = GTE_LIBRARY | {"architectures": ["GteForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "pad_token_id": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
    settings = {"bos_token": "<s>", "clean_up_tokenization_spaces": True, "cls_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "model_max_length": 64, "pad_token": "<pad>", "sep_token": "</s>", "tokenizer_class": "XLMRobertaTokenizer", "unk_token": "<unk>"}
    tokenizer = tokens.unigram(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"], "<unk>", "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    folder, model, hf = checkpoint("gte-new-reranker", config, AutoModelForSequenceClassification, tokenizer, settings, 26, [("classifier.weight", 0.5)], rename=gte_names("new."), library=library, dtype=torch.float16)
    check_matters(model, probe(hf, 64), ignore=("k_proj.bias",))
    finish(folder, {"source": source(model), "scores": score(folder, model, hf, 64, PAIRS, torch.sigmoid)})


# ---------------------------------------------------------------- jina's bert with ALiBi

JINA = {"_name_or_path": "jinaai/jina-bert-implementation", "architectures": ["JinaBertForMaskedLM"], "attention_probs_dropout_prob": 0.0, "auto_map": {"AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig", "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "attn_implementation": "torch", "classifier_dropout": None, "emb_pooler": "mean", "feed_forward_type": "geglu", "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 48, "initializer_range": 0.02,
        "intermediate_size": 32, "layer_norm_eps": 1e-12, "max_position_embeddings": 8192, "model_max_length": 8192, "model_type": "bert", "num_attention_heads": 6, "num_hidden_layers": 2, "pad_token_id": 0,
        "position_embedding_type": "alibi", "torch_dtype": "float32", "transformers_version": "4.31.0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 0}

JINA_CODE = JINA | {"_name_or_path": "jinaai/jina-bert-v2-qk-post-norm", "auto_map": {name: f"jinaai/jina-bert-v2-qk-post-norm--{at}" for name, at in (("AutoConfig", "configuration_bert.JinaBertConfig"), ("AutoModel", "modeling_bert.JinaBertModel"), ("AutoModelForMaskedLM", "modeling_bert.JinaBertForMaskedLM"))}}
JINA_LIBRARY = {k: v for k, v in JINA.items() if k not in ("attn_implementation", "auto_map")}


class JinaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self = nn.ModuleDict({n: nn.Linear(c.hidden_size, c.hidden_size) for n in ("query", "key", "value")})
        self.output = nn.ModuleDict({"dense": nn.Linear(c.hidden_size, c.hidden_size), "LayerNorm": nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)})
        self.heads = c.num_attention_heads

    def project(self, x): return tuple(self.self[n](x) for n in ("query", "key", "value"))

    def forward(self, x, bias):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias, -1) @ v
        return self.output["LayerNorm"](self.output["dense"](mixed.transpose(1, 2).flatten(2)) + x)


class JinaFeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gated_layers = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.wo = nn.Linear(c.intermediate_size, c.hidden_size)
        self.layernorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x):
        gate, linear = self.gated_layers(x).chunk(2, -1)
        return self.layernorm(self.wo(nn.functional.gelu(gate) * linear) + x)


class JinaLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.mlp = JinaAttention(c), JinaFeedForward(c)

    def forward(self, x, bias): return self.mlp(self.attention(x, bias))


class JinaModel(Written):
    """jina-bert-implementation's model: BERT with ALiBi for positions and a gated feed-forward, the gate first."""
    layer = JinaLayer

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(c.vocab_size, c.hidden_size), "token_type_embeddings": nn.Embedding(c.type_vocab_size, c.hidden_size), "LayerNorm": nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)})
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(self.layer(c) for _ in range(c.num_hidden_layers))})

    @staticmethod
    def slopes(heads):
        """Powers of 2^(-8/n) for the largest power of two n; beyond it every other one of the series for 2n."""
        n = 2 ** math.floor(math.log2(heads))
        return [2 ** (-8 * (i + 1) / n) for i in range(n)] + [2 ** (-4 * (2 * i + 1) / n) for i in range(heads - n)]

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, **_):
        if token_type_ids is None: token_type_ids = torch.zeros_like(input_ids)
        e = self.embeddings
        x = e["LayerNorm"](e["word_embeddings"](input_ids) + e["token_type_embeddings"](token_type_ids))
        at = torch.arange(input_ids.shape[1])
        bias = -torch.tensor(self.slopes(self.config.num_attention_heads))[:, None, None] * (at[:, None] - at).abs()
        if attention_mask is not None: bias = bias + (1 - attention_mask)[:, None, None].float() * -1e30
        for layer in self.encoder["layer"]: x = layer(x, bias)
        return BaseModelOutput(last_hidden_state=x)


class JinaCodeAttention(JinaAttention):
    def __init__(self, c):
        super().__init__(c)
        for n in "qk": self.self[f"layer_norm_{n}"] = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def project(self, x):
        q, k, v = super().project(x)
        return self.self["layer_norm_q"](q), self.self["layer_norm_k"](k), v


class JinaCodeFeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up_gated_layer = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.down_layer = nn.Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x):
        up, gate = self.up_gated_layer(x).chunk(2, -1)
        return self.down_layer(up * nn.functional.gelu(gate))


class JinaCodeLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention, self.mlp = JinaCodeAttention(c), JinaCodeFeedForward(c)
        self.layer_norm_1, self.layer_norm_2 = (nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps) for _ in range(2))

    def forward(self, x, bias):
        h = self.layer_norm_1(self.attention(x, bias) + x)
        return self.layer_norm_2(self.mlp(h) + h)


class JinaCodeModel(JinaModel):
    """jina-bert-v2-qk-post-norm's model: queries and keys normed over all heads at once, the layer's input added a second time behind the
    attention's own norm, and the gate is the last half."""
    layer = JinaCodeLayer


def check_slopes(model, run):
    """The slope of every head matters."""
    with_slopes = run(model)
    for head in range(6):
        JinaModel.slopes, kept = staticmethod(lambda heads: [s * (1.5 if i == head else 1) for i, s in enumerate(kept(heads))]), JinaModel.slopes
        assert float((run(model) - with_slopes).abs().max().detach()) > MATTERS, head
        JinaModel.slopes = staticmethod(kept)


@case
def jina_bert_v2():
    """As jina-embeddings-v2-base-en, whose model_type is plain `bert`; six heads, so that the slopes beyond a power of two count."""
    folder, model, hf = checkpoint("jina-bert-v2", JINA, JinaModel, tokens.wordpiece(size=160), BERT_TOKENS | {"model_max_length": 8192}, 27, library=JINA_LIBRARY, dtype=torch.float16)
    st_files(folder, 48, max_seq_length=64, normalize=False)
    check_matters(model, probe(hf, 64), ignore=("key.bias",))
    check_slopes(model, probe(hf, 64))
    st = written_sentence_transformer(folder, model, JINA_LIBRARY)
    embeddings = embed(st, TEXTS + [{"text": FOX, "normalize": True}])
    differ(embeddings[:7], "jina-bert-v2")
    finish(folder, {"source": f"{LIBRARIES}: jina-bert-implementation's JinaBertModel written anew in plain torch from its published modelling code (rotary_family.py), SentenceTransformer", "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings})


@case
def jina_bert_v2_code():
    """As jina-embeddings-v2-base-code: also a plain `bert` by its model_type, told apart by auto_map or its tensors; RoBERTa's tokenizer."""
    folder, model, hf = checkpoint("jina-bert-v2-code", JINA_CODE, JinaCodeModel, roberta_tokenizer(), ROBERTA_TOKENS | {"model_max_length": 8192}, 28, library=JINA_LIBRARY, dtype=torch.float16)
    st_files(folder, 48, max_seq_length=64, normalize=False)
    # Behind a norm the bias of the keys matters; the norm's own adds one number to all scores of a query, which the softmax takes out again.
    check_matters(model, probe(hf, 64), ignore=("layer_norm_k.bias",))
    check_slopes(model, probe(hf, 64))
    st = written_sentence_transformer(folder, model, JINA_LIBRARY)
    embeddings = embed(st, TEXTS + [{"text": FOX, "normalize": True}])
    differ(embeddings[:7], "jina-bert-v2-code")
    finish(folder, {"source": f"{LIBRARIES}: jina-bert-v2-qk-post-norm's JinaBertModel written anew in plain torch (rotary_family.py), SentenceTransformer", "hidden": hidden(model, hf, 64, [FOX, PAIR, LONG]), "embeddings": embeddings})
