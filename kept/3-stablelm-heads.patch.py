exec(open('/tmp/ed3.py').read().split("K='crates")[0])
R='crates/runtime/src/'
s=open(R+'load/resolve.rs').read()
i=s.index("                for (part, count) in [(LayerPart::QueryNorm, heads), (LayerPart::KeyNorm, kv_heads)] {"); j=s.index("            // Files of Phi-2 have")
print(s[i:j])
s=s[:i]+"""                for (part, count) in [(LayerPart::QueryNorm, heads), (LayerPart::KeyNorm, kv_heads)] {
                    self.join_head_norms(Part::Layer(index, part).weight(), [count, head_dim])?;
                }
            }
"""+s[j:]
s=s.replace("""    /// Exchanges rows and columns of a layer's matrices.
""","""    /// Makes one vector of the factors of each head's norm, which files have as a matrix or each under a name of its own.
    fn join_head_norms(&mut self, weight: Weight, [heads, head_dim]: [usize; 2]) -> Result<(), LoadError> {
        let name = self.name(weight);
        if let Some(tensor) = self.by_name.get_mut(&name) {
            if tensor.shape == [heads, head_dim] {
                tensor.shape = vec![heads * head_dim];
            }
            return Ok(());
        }
        let stem = name.trim_end_matches(".weight");
        let of_head = |head: usize| format!("{stem}.norms.{head}.weight");
        if !self.by_name.contains_key(&of_head(0)) {
            return Ok(());
        }
        let mut joined = Vec::new();
        let mut first = None;
        for head in 0..heads {
            let tensor = self.take(&of_head(head), &[head_dim])?;
            joined.extend(tensor.to_f32()?.iter().flat_map(|factor| factor.to_le_bytes()));
            first.get_or_insert(tensor);
        }
        if let Some(first) = first {
            let shape = vec![heads * head_dim];
            self.put_back(Tensor { name, dtype: DType::F32, shape, bytes: joined.into(), ..first });
        }
        Ok(())
    }

    /// Exchanges rows and columns of a layer's matrices.
""",1)
open(R+'load/resolve.rs','w').write(s)
sub(R+'spec/names_own.rs',('''            "opt" => &Names::OPT,
''','''            "opt" => &Names::OPT,
            "stablelm" => &Names::STABLELM,
'''),('''    /// The transformers library's OPT class.
''','''    /// The transformers library's StableLm class.
    pub(crate) const STABLELM: Names = Names {
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        ..Names::HUGGING_FACE
    };

    /// The transformers library's OPT class.
'''))
s=open(R+'spec/dense.rs').read()
a='''                spec.layers.iter_mut().for_each(|layer| layer.order = NormOrder::Parallel);
            }
            Ok(())
        },
        refused: &["qk_layernorm"],
'''
assert s.count(a)==1
s=s.replace(a,'''                spec.layers.iter_mut().for_each(|layer| layer.order = NormOrder::Parallel);
            }
            if config.bool("qk_layernorm")?.unwrap_or(false) {
                norm_heads_apart(spec);
            }
            Ok(())
        },
''')
a='''        spec.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = QkNorm::HeadsApart);
'''
assert s.count(a)==1
s=s.replace(a,"        norm_heads_apart(spec);\n")
s=s.replace("/// Layers that see all turn nothing.\n","""/// Each head of queries and of keys has a norm of its own.
fn norm_heads_apart(spec: &mut TransformerSpec) {
    spec.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = QkNorm::HeadsApart);
}

/// Layers that see all turn nothing.
""",1)
open(R+'spec/dense.rs','w').write(s)
sub(R+'spec/dense_gguf.rs',('"command-r" if has(','"command-r" | "stablelm" if has('))
sub(R+'decoder/tests/dense.rs',('''    ("stablelm-parallel", true),
''','''    ("stablelm-parallel", true),
    ("stablelm-heads", true),
'''))
sub('docs/models.md',("`dense/stablelm`, `dense/stablelm-parallel` |","`dense/stablelm`, `dense/stablelm-parallel`, `dense/stablelm-heads` |"))
P='tests/data/dense/make_dense.py'
sub(P,('''    "seed-oss": (t.SeedOssConfig,''','''    "stablelm-heads": (t.StableLmConfig, dict(**OF_HIDDEN | BOTH | dict(num_attention_heads=4, num_key_value_heads=2), rope_parameters=PLAIN | {"partial_rotary_factor": 0.25}, use_parallel_residual=True, qk_layernorm=True), "stablelm"),
    "seed-oss": (t.SeedOssConfig,'''),
('''    tokens = ["<unk>", "<s>", "</s>"]''','''    for key in [key for key in weights if key.endswith("layernorm.norms.0.weight")]:
        stem = key.removesuffix("norms.0.weight")
        weights = weights | {stem + "weight": torch.stack([weights[name] for name in sorted(weights) if name.startswith(stem + "norms")])}
    weights = {key: tensor for key, tensor in weights.items() if ".norms." not in key}
    tokens = ["<unk>", "<s>", "</s>"]'''))
