//! What an answer must satisfy: JSON schemas, regular expressions, choices and grammars, compiled over a model's vocabulary, and
//! which of its tokens may come next. Absent on purpose: logits, sampling, threads, models.
