//! `inspect`: describes a model's files, its memory use here, and whether it can run. Loads nothing.

use crate::args::{EngineArgs, InspectArgs};
use crate::connect;
use crate::error::CliError;
use crate::paths;
use crate::print::print_json;
use crate::size::{show_bytes, show_count, show_parameters};
use crate::term::{Paint, harmless};
use hanzo_engine_daemon::DEMO_MODEL;
use hanzo_engine_daemon::inspect::{
    self, Facts, InspectReport, Memory, Shape, TemplateFacts, Token, TokenizerFacts,
};
use hanzo_engine_proto::v1;
use std::io::{Write, stdout};
use std::path::Path;

/// Runs the command.
pub(crate) async fn inspect(args: InspectArgs) -> Result<(), CliError> {
    let asked = inspect::InspectOptions {
        model: path_of(&args.model, &args.engine).await?,
        store_dir: args.store.model_dir.clone(),
        context_tokens: args.context,
        kv_type: args.kv_type.0,
    };
    let report = inspect::run(&asked)?;
    if args.json { print_json(&report) } else { print(&report).map_err(CliError::Output) }
}

/// Path of a model's files, from the daemon that has the store open, if there is one.
pub(crate) async fn path_of(model: &str, engine: &EngineArgs) -> Result<String, CliError> {
    let model = paths::model_source(model)?;
    if Path::new(&model).exists() || model.eq_ignore_ascii_case(DEMO_MODEL) {
        return Ok(model);
    }
    let Some(mut daemon) = connect::find(engine).await?.filter(|daemon| daemon.here) else {
        return Ok(model);
    };
    let shown = daemon.client.show(v1::ShowRequest { model, known_only: false }).await;
    Ok(shown.map_err(CliError::Engine)?.into_inner().model.unwrap_or_default().path)
}

fn print(report: &InspectReport) -> std::io::Result<()> {
    let out = &mut stdout().lock();
    let paint = Paint::of(&stdout());
    let Facts { name, architecture, format, tensors, .. } = &report.facts;
    writeln!(out, "{}", paint.bold(&shown(name.as_deref().unwrap_or("a model without a name"))))?;
    let mut row = |label: &str, value: String| match value.is_empty() {
        true => Ok(()),
        false => writeln!(out, "  {label:<13} {}", shown(&value)),
    };
    row("architecture", architecture.clone().unwrap_or_default())?;
    row("format", (*format).to_owned())?;
    row("parameters", show_parameters(report.facts.parameters))?;
    row("size", files(&report.facts))?;
    if let Some(shape) = &report.facts.network {
        for (label, value) in network(shape) {
            row(label, value)?;
        }
    }
    for of_type in tensors {
        let count = show_count(of_type.tensors as usize, "tensor");
        let line = format!("{:<8} {count}, {}", of_type.dtype, show_bytes(of_type.bytes));
        row("weights", line)?;
    }
    if let Some(facts) = &report.facts.tokenizer {
        for line in tokenizer(facts) {
            row("tokenizer", line)?;
        }
    }
    row("template", report.facts.template.as_ref().map_or_else(|| "none".to_owned(), template))?;
    if !report.facts.generation_not_read.is_empty() {
        row("not followed", report.facts.generation_not_read.join(", "))?;
    }
    if let Some(one) = &report.memory {
        row("memory", format!("{} with {}", memory(one), context(one)))?;
    }
    if let Some(load) = &report.load {
        row("a load", format!("{} for contexts of {} tokens", memory(load), load.context_tokens))?;
    }
    row("this machine", format!("{}{}", report.device, budget(report)))?;
    match &report.why {
        None => match report.facts.inputs_not_read {
            [] => row("runs", "yes".to_owned())?,
            inputs => row("runs", format!("its text alone: {} are not read", inputs.join(" and ")))?,
        },
        Some(_) => row("runs", "no".to_owned())?,
    }
    for problem in &report.facts.problems {
        row("", problem.clone())?;
    }
    Ok(())
}

fn shown(text: &str) -> String {
    harmless(text).replace('\n', " ")
}

fn files(facts: &Facts) -> String {
    let count = facts.files.len();
    let bytes = show_bytes(facts.size_bytes);
    if count > 1 { format!("{bytes} in {}", show_count(count, "file")) } else { bytes }
}

fn budget(report: &InspectReport) -> String {
    report.budget_bytes.map_or(String::new(), |bytes| format!(", {} for models now", show_bytes(bytes)))
}

fn context(memory: &Memory) -> String {
    format!("a context of {} tokens", memory.context_tokens)
}

fn memory(memory: &Memory) -> String {
    let Memory { weights_bytes, kv_bytes, scratch_bytes, total_bytes, .. } = *memory;
    let parts = [("weights", weights_bytes), ("KV cache", kv_bytes), ("scratch", scratch_bytes)];
    let parts = parts.map(|(name, bytes)| format!("{name} {}", show_bytes(bytes)));
    format!("{} ({})", show_bytes(total_bytes), parts.join(", "))
}

/// Rows about the network: a label and a value each.
fn network(shape: &Shape) -> Vec<(&'static str, String)> {
    let some = |number: Option<u64>, unit: &str| number.map(|number| format!("{number} {unit}"));
    let layers = [
        some(shape.layers, "layers"),
        shape.hidden.map(|hidden| format!("hidden {hidden}")),
        some(shape.heads, "heads"),
        some(shape.kv_heads, "key and value heads"),
        shape.head_dim.map(|dim| format!("head {dim}")),
    ];
    let of_layers =
        |layers: Option<u64>| layers.map_or(String::new(), |layers| format!(" in {layers} layers"));
    let windows = shape.windows.iter().map(|window| format!("{}{}", window.tokens, of_layers(window.layers)));
    let experts = shape.experts.as_ref().map(|experts| {
        let used = experts.used.map_or(String::new(), |used| format!(", {used} used"));
        format!("{}{used}{}", experts.count, of_layers(experts.layers))
    });
    let ropes = shape.ropes.iter().map(|rope| {
        let dim = rope.dim.map_or(String::new(), |dim| format!(" on {dim} elements"));
        format!("base {}{dim}, scaling {}", rope.base, rope.scaling)
    });
    vec![
        ("network", shape.kind.unwrap_or_default().to_owned()),
        ("layers", layers.into_iter().flatten().collect::<Vec<_>>().join(", ")),
        ("windows", windows.collect::<Vec<_>>().join(", ")),
        ("experts", experts.unwrap_or_default()),
        ("rope", ropes.collect::<Vec<_>>().join("; ")),
        ("vocabulary", some(shape.vocab, "tokens").unwrap_or_default()),
        ("context", some(shape.context_tokens_max, "tokens").unwrap_or_default()),
    ]
}

fn tokenizer(facts: &TokenizerFacts) -> Vec<String> {
    let TokenizerFacts { model, pre, tokens, control_tokens, bos, eos } = facts;
    let kind = [
        model.clone(),
        pre.as_ref().map(|pre| format!("pre-tokenizer {pre}")),
        tokens.map(|tokens| format!("{tokens} tokens")),
        control_tokens.map(|tokens| format!("{tokens} of them control tokens")),
    ];
    let token = |token: &Token| format!("{:?} ({})", token.text, token.id);
    let ends: Vec<String> = eos.iter().map(token).collect();
    let around = [
        bos.as_ref().map(|bos| format!("begins with {}", token(bos))),
        Some(ends.join(", ")).filter(|ends| !ends.is_empty()).map(|ends| format!("ends with {ends}")),
    ];
    let line = |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    vec![line(kind.to_vec()), line(around.to_vec())]
}

fn template(facts: &TemplateFacts) -> String {
    let tools = match (facts.tool_format, facts.offers_tools) {
        (Some(format), true) => format!(", tool calls as {format}"),
        (Some(format), false) => format!(", knows no tools (calls would be {format})"),
        (None, _) => String::new(),
    };
    let reasoning = facts.reasoning.as_ref().map(|[open, close]| format!(", reasoning in {open} {close}"));
    format!("{} bytes{tools}{}", facts.bytes, reasoning.unwrap_or_default())
}
