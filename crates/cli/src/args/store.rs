//! Arguments of the commands for stored models: `pull`, `list`, `show`, `inspect`, `rm`, `cp`, `gc`, `verify`,
//! `du`, `export`, `import`, `doctor`, and of `completions`.

use super::KvTypeName;
use super::engine::{EngineArgs, StoreArgs};
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// Arguments of `pull`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine pull zen-nano                            an alias of the program
  hanzo-engine pull qwen/qwen3-4b                       safetensors from Hugging Face
  hanzo-engine pull Qwen/Qwen3-4B-GGUF --quant Q8_0     one quantization of a GGUF repository
  hanzo-engine pull ollama://llama3.2:3b                from Ollama's registry
  hanzo-engine pull mlx://mlx-community/Qwen3-4B-4bit   MLX's layout
  hanzo-engine pull https://host/model.gguf#sha256=…    one file, its digest checked
  hanzo-engine pull ./model.gguf --copy                 a file of this machine, copied

What is on this machine already is not fetched again: files of other models, of Hugging Face's cache and of Ollama's store are used. Whatever ends a pull, the same pull goes on from where it stopped; nothing is visible before all of it is there and its digests are right. Two pulls of the same are one. Ctrl-C ends the pull for everybody who waits for it.

HF_TOKEN (or the file that `hf auth login` writes) is sent to the hub; HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 asks no network, HTTPS_PROXY and NO_PROXY are followed. They count where the pull runs: in the daemon, if one answers.

--json prints an object a line: {\"event\": \"progress\", \"model\", \"phase\": \"resolving\", \"downloading\", \"verifying\" or \"done\", \"bytes_done\", \"bytes_total\", \"bytes_fetched\", \"bytes_per_s\", \"eta_s\": null while unknown, \"joined\", \"files\": [{\"name\", \"phase\", \"bytes_done\", \"bytes_total\"}]}, twice a second at most; then {\"event\": \"done\", \"model\": as of `list --json`} or {\"event\": \"failed\", \"error\"}.")]
pub(crate) struct PullArgs {
    /// Model to pull: owner/model, hf://, ollama://, mlx://, https://, file://, ./path, an alias or a known
    /// model
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// Fetch everything again, even files that are present
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Quantization of a GGUF repository [default: Q4_K_M, else Q8_0]
    #[arg(long, value_name = "NAME")]
    pub(crate) quant: Option<String>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
    /// Take exactly the files that match, instead of the usual choice; repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Take none of the files that match; repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Copy a local file into the store instead of using it in place
    #[arg(long)]
    pub(crate) copy: bool,
    /// Print JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(
    after_help = "--json prints [{\"name\", \"format\", \"quantization\", \"size_bytes\", \"modified_at_unix_ms\", \"used_at_unix_ms\": 0 when never, \"path\", \"source\", \"reference\": what to pull to get the same, \"revision\": empty when its source has none, \"in_place\": its files are not the store's, \"loaded\", \"missing\": some of its files are gone}], in order of name; with --aliases [{\"alias\", \"target\", \"builtin\": comes with the program}], one's own first."
)]
pub(crate) struct ListArgs {
    /// List aliases instead: those made by `cp`, and the built-in ones
    #[arg(long)]
    pub(crate) aliases: bool,
    /// Print JSON: an array of models
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
#[command(
    after_help = "--json prints an object of `list --json` and beside it \"architecture\", \"parameters\", \"context_tokens_max\", \"license\", \"license_text\", \"capabilities\": [names], \"tool_format\": how it writes tool calls, \"chat_template\", \"source_template\": one that is not Jinja, \"system\": the prompt it came with, \"params\": null or the sampling options it came with, \"files\": [{\"path\", \"size_bytes\", \"sha256\": null while not computed, \"role\", \"held\": \"blob\", \"linked\" or \"elsewhere\", \"missing\"}], \"status\": null or as of `ps --json`."
)]
pub(crate) struct ShowArgs {
    /// Name of the model, or path to a GGUF file or a safetensors directory
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine inspect ./qwen3-4b-Q8_0.gguf
  hanzo-engine inspect ./qwen3-4b --context 32768 --json

Of a file that cannot be run it says why, and what can be read of it all the same. Headers and text files are read, no weights.

--json prints {\"format\", \"name\", \"architecture\", \"files\": [paths], \"size_bytes\", \"parameters\", \"network\": null or {\"kind\": \"decoder\", \"encoder\" or null, \"layers\", \"hidden\", \"heads\", \"kv_heads\", \"head_dim\", \"vocab\", \"context_tokens_max\", \"windows\": [{\"tokens\", \"layers\"}], \"experts\": null or {\"count\", \"used\", \"layers\"}, \"ropes\": [{\"base\", \"dim\", \"scaling\"}]}, \"tensors\": [{\"dtype\", \"tensors\", \"parameters\", \"bytes\"}], \"tokenizer\": null or {\"model\", \"pre\", \"tokens\", \"control_tokens\", \"bos\": null or {\"id\", \"text\"}, \"eos\": [{\"id\", \"text\"}]}, \"template\": null or {\"bytes\", \"tool_format\", \"offers_tools\", \"reasoning\": null or [open, close]}, \"problems\": [what cannot be read or run], \"device\", \"runs\", \"why\": null or why not, \"memory\": null or {\"context_tokens\", \"weights_bytes\", \"kv_bytes\", \"scratch_bytes\", \"total_bytes\"} with one context, \"load\": null or the same of a load, whose cache keeps several contexts, \"budget_bytes\": what models may take now}; what is not known is null.")]
pub(crate) struct InspectArgs {
    /// Path to a GGUF file or a model's directory, or the name of a model
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Context length in tokens for the memory estimate [default: the longest]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// Type of the KV cache for the memory estimate
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: KvTypeName,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `rm`.
#[derive(Debug, Args)]
#[command(
    after_help = "A pulled model's files go, but for those that another model has too. A model that was used where it lies is forgotten, and its files stay. Of an alias that `cp` made, the alias alone goes.

--json prints {\"name\", \"path\", \"freed_bytes\", \"alias_of\": null, or what the alias stood for}."
)]
pub(crate) struct RmArgs {
    /// Name of the model, or an alias
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `cp`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine cp qwen3-4b:Q8_0 best
  hanzo-engine cp hf://Qwen/Qwen3-4B@main judge     of a model that is not pulled yet

No file is copied: NEW is another name, and `rm NEW` takes it away. It may be used wherever a model is named.

--json prints {\"alias\", \"target\", \"builtin\": false}. `list --aliases` lists them.")]
pub(crate) struct CpArgs {
    /// Name of a model, or a reference as for `pull`
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// New name
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
#[command(
    after_help = "Deletes what is older than an hour of: files no model has, folders of models that are gone, and what broken-off pulls left (they begin anew then). Not while models are pulled.

--json prints {\"dry_run\", \"paths\": [deleted, or what would be], \"freed_bytes\", \"young\": how many were left for being younger than an hour}."
)]
pub(crate) struct GcArgs {
    /// Only print what would be deleted
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads every file and compares its SHA-256 with the one it had. `pull --force` brings back what is corrupt. The exit code is 1 unless all is sound.

--json prints [{\"model\", \"sound\", \"files\": [{\"path\", \"health\": \"sound\", \"unchecked\" (no digest is known), \"missing\", \"changed\" (by its owner) or \"corrupt\", \"expected_sha256\" and \"found_sha256\": null unless corrupt}]}]."
)]
pub(crate) struct VerifyArgs {
    /// Name of the model [default: every model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Print JSON: an array of models
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `du`.
#[derive(Debug, Args)]
#[command(
    after_help = "OWN is what `rm` frees, SHARED what other models have too, ELSEWHERE what lies where it lay.

--json prints {\"dir\", \"models\": [{\"name\", \"size_bytes\", \"own_bytes\", \"shared_bytes\", \"elsewhere_bytes\"}], \"blobs_bytes\": all files of pulled models, \"orphan_bytes\": of them, those no model has, \"partial_bytes\": pulls that run or broke off, \"database_bytes\", \"elsewhere_bytes\", \"free_bytes\": of the disk}."
)]
pub(crate) struct DuArgs {
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine export qwen3-4b qwen3-4b.tar
  hanzo-engine export zen-nano zen3-embedding models.tar

For a machine without a network: `hanzo-engine import models.tar` there. A file that two models share is in the archive once. The archive appears when it is complete.

--json prints {\"models\": [names as they were given], \"file\", \"size_bytes\"}.")]
pub(crate) struct ExportArgs {
    /// Names of models
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Archive to write
    #[arg(value_name = "FILE.tar", required = true)]
    pub(crate) file: PathBuf,
    /// Overwrite an existing archive
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs no network. Nothing of the archive is visible before all of it was read and its digests are right.

--json prints [models as of `list --json`]."
)]
pub(crate) struct ImportArgs {
    /// Archive written by `export`
    #[arg(value_name = "FILE.tar")]
    pub(crate) file: PathBuf,
    /// Print JSON: an array of models
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Tells what this machine has for the engine and what would make it faster, and looks at the store, which no daemon may have open meanwhile. Without --repair it changes nothing. --repair moves a database aside that cannot be opened, and gives pulled models their records again by the manifests beside their files. The exit code is 1 while something is wrong.

--json prints {\"dir\", \"sound\", \"models\": how many, \"free_bytes\", \"findings\": [{\"what\": \"database\", \"record\", \"files\", \"folder\", \"pull\" or \"orphans\", \"serious\": it makes the store unsound, \"message\"}], \"repaired\": null without --repair, or {\"database_moved_to\": null or a path, \"restored\": [names], \"skipped\": [{\"path\", \"why\"}], \"relinked\": how many files}, \"machine\": {\"processor\", \"threads\", \"tier\", \"tiers_missing\", \"memory_bytes\", \"memory_available_bytes\", \"memory_limit_bytes\", \"cpu_limit\", \"huge_pages\", \"governor\", \"nvidia_driver\": null where the system does not say, \"gpus\", \"cards\": [{\"name\", \"memory_bytes\", \"memory_free_bytes\", \"fault\": null where it works}], \"cards_missing\": null or why there is none, \"advice\": [sentences]}, \"ports\": [{\"port\", \"what\", \"state\": \"free\", \"taken\" or \"forbidden\"}], \"hubs\": null without --network, or [{\"url\", \"error\": null where it answers, \"clock_ahead_s\"}]}."
)]
pub(crate) struct DoctorArgs {
    /// Repair what can be repaired
    #[arg(long)]
    pub(crate) repair: bool,
    /// Check whether the hub and Ollama's registry answer, and compare clocks
    #[arg(long)]
    pub(crate) network: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(hanzo-engine completions bash)
  hanzo-engine completions zsh > ~/.zfunc/_hanzo-engine
  hanzo-engine completions fish > ~/.config/fish/completions/hanzo-engine.fish")]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    #[arg(value_name = "SHELL", required_unless_present = "write_documents")]
    pub(crate) shell: Option<Shell>,
    /// Write manual pages and completions below this directory, for a package
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "shell")]
    pub(crate) write_documents: Option<PathBuf>,
}
