//! What can be typed: every command, argument and flag, with its help. A flag exists only if it does something.

mod adapter;
mod embed;
mod engine;
mod health;
mod imatrix;
mod keys;
mod load;
mod mcp;
mod overrides;
mod quantize;
mod sampling;
mod say;
mod store;
mod transcribe;

pub(crate) use adapter::{AdapterArgs, AdapterCommand};
pub(crate) use embed::{EmbedArgs, InputFormat, RerankArgs};
pub(crate) use engine::{EngineArgs, LogLevel, StoreArgs};
pub(crate) use health::HealthArgs;
pub(crate) use imatrix::ImatrixArgs;
pub(crate) use keys::{CreateArgs, KeysArgs, KeysCommand, KeysFileArgs};
pub(crate) use load::LoadArgs;
pub(crate) use mcp::McpArgs;
pub(crate) use overrides::OverrideArgs;
pub(crate) use quantize::{QuantizeArgs, To as QuantizeTo};
pub(crate) use sampling::{ConstraintArgs, SamplingArgs};
pub(crate) use say::{SayArgs, SayFormat};
pub(crate) use store::{
    CompletionsArgs, CpArgs, DoctorArgs, DuArgs, ExportArgs, GcArgs, ImportArgs, InspectArgs, ListArgs,
    PullArgs, RmArgs, ShowArgs, VerifyArgs,
};
pub(crate) use transcribe::TranscribeArgs;

use clap::builder::PossibleValue;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use hanzo_engine_daemon::config::KvType;
use std::net::IpAddr;
use std::path::PathBuf;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "hanzo-engine",
    version,
    styles = STYLES,
    about = "Runs language models on this machine and serves them over OpenAI's HTTP API and gRPC",
    after_help = "Examples:
  hanzo-engine serve                               serve the built-in demo model
  hanzo-engine serve --model ./qwen3-4b-Q8_0.gguf  serve a GGUF file
  hanzo-engine run hanzo-demo \"Hello!\"             ask once, streamed to the terminal
  hanzo-engine run zen-nano                        pull a model, after asking, and talk to it
  hanzo-engine run ./qwen3-4b                      talk to a safetensors directory
  hanzo-engine embed -m ./qwen3-embedding --input docs.jsonl --output docs.parquet
  hanzo-engine bench --model ./qwen3-4b-Q8_0.gguf -p 512 -n 64

A MODEL is hanzo-demo, the name of a model pulled or used before (case, owner and quantization may be left out), a reference as `pull` takes it, or a path to a GGUF file or a safetensors directory. `hanzo-engine COMMAND --help` tells more of each command.",
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models over HTTP (OpenAI's API) and gRPC until Ctrl-C
    Serve(ServeArgs),
    /// Ask a model once, or talk to it
    Run(RunArgs),
    /// Turn texts into vectors: a few, or a file of any size
    Embed(EmbedArgs),
    /// Order documents by how well they answer a query
    Rerank(RerankArgs),
    /// Write down what is said in sound files
    Transcribe(TranscribeArgs),
    /// Say a text into a sound file, or list a model's voices
    Say(SayArgs),
    /// Fetch a model into the store
    Pull(PullArgs),
    /// List known models
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show what is known of a model
    Show(ShowArgs),
    /// Look into a model's files without loading it: what it is, what it would take here, whether it can run
    Inspect(InspectArgs),
    /// Remove a model; files that were used in place stay
    Rm(RmArgs),
    /// Give a model another name
    Cp(CpArgs),
    /// Delete files that no model needs
    Gc(GcArgs),
    /// Read models' files again and compare digests
    Verify(VerifyArgs),
    /// Show how much of the disk each model takes
    Du(DuArgs),
    /// Write models into one archive
    Export(ExportArgs),
    /// Take the models of an archive in, without a network
    Import(ImportArgs),
    /// Look for what is wrong with the model store, and repair it
    Doctor(DoctorArgs),
    /// Load a model into the running daemon
    Load(LoadArgs),
    /// List the models that are loaded in the running daemon
    Ps(PsArgs),
    /// Unload a model from the running daemon
    Stop(StopArgs),
    /// Ask a server over HTTP whether it serves, and which models
    Health(HealthArgs),
    /// Offer the models as tools to the agent that starts this, by the Model Context Protocol over stdin and stdout
    Mcp(McpArgs),
    /// Load, unload or list low-rank adapters of models in the running daemon
    Adapter(AdapterArgs),
    /// Make, list and revoke the keys that a server asks its clients for
    Keys(KeysArgs),
    /// Make a GGUF file of fewer bits of another one
    Quantize(QuantizeArgs),
    /// Find which columns of a model's matrices matter, for quantize --imatrix
    Imatrix(ImatrixArgs),
    /// Measure how fast a model reads prompts and writes answers here
    Bench(BenchArgs),
    /// Print a script that completes commands and flags in a shell
    Completions(CompletionsArgs),
}

/// A type of KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvTypeName(pub(crate) KvType);

const _: () = assert!(KvType::ALL.len() == 3, "a type of cache that no command takes");

impl ValueEnum for KvTypeName {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(KvType::F16), Self(KvType::Q8_0), Self(KvType::Fp8)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

/// `serve`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine serve
  hanzo-engine serve --model ./qwen3-4b-Q8_0.gguf --port 8080 --threads 8
  hanzo-engine serve --model qwen3-4b:Q8_0 --model hanzo-demo --memory-budget 8GiB
  hanzo-engine serve --model zen-nano --yes                   pulled first if it is not here
  hanzo-engine serve --host 0.0.0.0 --api-keys-file keys.json  see `hanzo-engine keys`
  hanzo-engine serve --port 0 --grpc-port 0 --admin-port 0    free ports, printed at start

Without --model, and without models in the configuration, it serves the built-in hanzo-demo.
Settings come from the defaults, then --config, then the environment, then flags.
Ctrl-C, SIGTERM or SIGQUIT lets running answers finish; a second one ends them at once.
SIGHUP reads the settings again, takes what can be taken, and says in the log what waits for a restart.")]
pub(crate) struct ServeArgs {
    /// Model to load at start, by name, reference or path; may be given several times
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Vec<String>,
    /// Low-rank adapter to load with the model, a PEFT directory or a GGUF file; may be given several times
    #[arg(long, value_name = "NAME=PATH", value_parser = adapter::named_path)]
    pub(crate) adapter: Vec<(String, String)>,
    /// How the model writes tool calls, such as hermes [default: as its chat template says]
    #[arg(long, value_name = "FORMAT", value_parser = hanzo_engine_daemon::config::parse_tool_format)]
    pub(crate) tool_format: Option<String>,
    /// Smaller model of the same vocabulary that drafts for the model: the same answers, sooner where it is often right
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Let HTTP clients load adapters from paths on this machine, and unload them
    #[arg(long)]
    pub(crate) adapter_updates: bool,
    /// Pull models that are not on this machine without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Port of the HTTP API; 0 picks a free one [default: 36900]
    #[arg(long, short, env = "HANZO_ENGINE_SERVER_PORT")]
    pub(crate) port: Option<u16>,
    /// Port of gRPC; 0 picks a free one [default: 36901]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// Port of /metrics, /healthz and /readyz; 0 picks a free one [default: 36902]
    #[arg(long, value_name = "PORT")]
    pub(crate) admin_port: Option<u16>,
    /// Let models call the tools of the MCP servers in --mcp-config
    #[arg(long, requires = "mcp_config")]
    pub(crate) enable_mcp: bool,
    /// MCP servers, as Claude Desktop has them: {"mcpServers": {NAME: {"command": …} or {"url": …}}}
    #[arg(long, value_name = "FILE", requires = "enable_mcp")]
    pub(crate) mcp_config: Option<PathBuf>,
    /// Serve MCP on a port of its own too; /mcp of the HTTP port has it in any case
    #[arg(long)]
    pub(crate) mcp_enabled: bool,
    /// Port of MCP with --mcp-enabled; 0 picks a free one [default: 3691]
    #[arg(long, value_name = "PORT")]
    pub(crate) mcp_port: Option<u16>,
    /// Address to listen on; 0.0.0.0 is every one [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", value_parser = hanzo_engine_daemon::config::parse_host)]
    pub(crate) host: Option<IpAddr>,
    /// Key that every request must have; better set as HANZO_ENGINE_API_KEY, which no list of processes shows
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// File of keys, each with what it may do, as `hanzo-engine keys create` makes it; followed while it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys_file: Option<PathBuf>,
    /// Certificate (PEM, with those between it and its authority) for HTTPS and gRPC by TLS; followed while it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities (PEM): clients must show a certificate of one of them
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Origin whose pages may ask over HTTP, such as https://chat.example.com, or * for any; repeatable [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Host, such as pictures.example.com or that with :PORT, to fetch pictures and sounds from that requests name by a URL;
    /// repeatable [default: none]
    #[arg(long = "media-hosts", value_name = "HOST")]
    pub(crate) media_hosts: Vec<String>,
    /// Listen on other addresses than the loopback's without a key: only where the network is private
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Want a key for /metrics, /health and /version too
    #[arg(long)]
    pub(crate) private_metrics: bool,
    /// Tell the admin port's /metrics under another engine's names too: vllm
    #[arg(long, value_name = "ENGINE")]
    pub(crate) metrics_compat: Option<hanzo_engine_daemon::config::MetricsCompat>,
    /// Show no page to browsers at /
    #[arg(long)]
    pub(crate) no_page: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Longest prompt and answer together, in tokens [default: the model's own, as far as memory allows]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_context: Option<u32>,
    /// Memory that all models may take together, such as 8GiB [default: 80 % of what is available]
    #[arg(long, value_name = "SIZE", value_parser = hanzo_engine_daemon::config::parse_bytes)]
    pub(crate) memory_budget: Option<u64>,
    /// Memory this process stays within, such as 2GiB: taken as models are loaded, and none later
    #[arg(long, value_name = "SIZE", value_parser = hanzo_engine_daemon::config::parse_bytes, conflicts_with = "memory_budget")]
    pub(crate) fixed_memory: Option<u64>,
    /// How keys and values are stored: q8_0 keeps and reads about half the bytes of f16 [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvTypeName>,
    /// Where tokens are drafted from, which several at once are computed of: ngram (what was said before) or off [default: ngram]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) speculation: Option<hanzo_engine_daemon::config::Speculation>,
    /// Keep what prompts have computed in this directory, to be found after a restart
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache_dir: Option<PathBuf>,
    /// Space it may take there, such as 4GiB [default: 16GiB]
    #[arg(long, value_name = "SIZE", value_parser = hanzo_engine_daemon::config::parse_bytes)]
    pub(crate) prefix_cache_bytes: Option<u64>,
    /// What models are loaded on: auto (every NVIDIA card that works, then the processor), or names in order such as cuda:0,cpu, or the numbers of cards (0,1), the processor behind them [default: auto]
    #[arg(long, aliases = ["devices", "gpu-devices", "device-map"], value_name = "NAMES")]
    pub(crate) device: Option<hanzo_engine_daemon::config::Devices>,
    /// Layers of a model on a card, from the last on; the others are the processor's: auto (as many as fit), all or a number [default: auto]
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<hanzo_engine_daemon::config::GpuLayers>,
    /// How several cards share a model: by layer, or by row, all computing each layer together [default: layer]
    #[arg(long, value_name = "HOW")]
    pub(crate) split_mode: Option<hanzo_engine_daemon::config::SplitMode>,
    /// What runs a model: a thread of this program, or a process of its own, whose end is nobody else's [default: thread]
    #[arg(long, value_name = "WHAT")]
    pub(crate) isolation: Option<hanzo_engine_daemon::config::Isolation>,
    /// Let answers that fill their context go on: its first tokens are kept, half of the others dropped
    #[arg(long)]
    pub(crate) context_shift: bool,
    /// Whether a request that names a stored model loads it: always or never [default: always]
    #[arg(long, value_name = "WHEN")]
    pub(crate) on_demand: Option<hanzo_engine_daemon::config::OnDemand>,
    /// How long such a model stays when nobody uses it: seconds or a time such as 5m, 0 for at once, -1 for good [default: 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) keep_alive: Option<hanzo_engine_daemon::config::KeepAlive>,
    /// How much is logged, on stderr [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Where traces of requests are sent by OTLP, such as http://localhost:4317 [default: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) traces_endpoint: Option<String>,
    /// Configuration file, TOML or YAML by its extension
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings that hold, of file, environment and flags together, with keys hidden; serve nothing
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Say whether the settings and the files that they name can be used; serve nothing
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Name in Host that HTTP answers to beside localhost, such as a proxy's; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// Ignore unknown fields of HTTP requests instead of answering 400
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Keep responses that clients may ask for again in this directory, to be found after a restart [default: in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) responses_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overrides: OverrideArgs,
}

/// `run`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine run hanzo-demo \"What is the capital of France?\"
  hanzo-engine run ./qwen3-4b-Q8_0.gguf                 a conversation: /help, /clear, /exit; files may be dropped into it
  cat notes.txt | hanzo-engine run qwen3-4b \"Sum this up:\"
  hanzo-engine run qwen3-4b --json-schema person.json \"Invent somebody.\"
  hanzo-engine run qwen3-4b --raw \"Once upon a time\" --max-tokens 64 --seed 7

The answer goes to stdout, the model's reasoning and everything else to stderr. A running daemon does the work where one answers; else this process loads the model itself.")]
pub(crate) struct RunArgs {
    /// Name of a model, reference, or path to a GGUF file or a safetensors directory
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Pull a model that is not on this machine without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// What to ask; without it a conversation begins. Piped input is added to it
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
    /// Picture to show before the question, of a model that sees: JPEG, PNG, WebP or GIF; may be given up to 16 times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) image: Vec<PathBuf>,
    /// Sound to play before the question, to a model that hears: wav, mp3, flac, ogg, webm, m4a, aac or aiff; may be given up to 16 times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) sound: Vec<PathBuf>,
    /// System message [default: the one the model came with, if any]
    #[arg(long, short, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Longest answer, in tokens [default: the model's own limit, and what the context leaves]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Text at which the answer ends, instead of those the model came with; may be given up to 16 times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Let the model reason first, where its template has that switch
    #[arg(long, conflicts_with_all = ["no_think", "raw"])]
    pub(crate) think: bool,
    /// Do not let the model reason first, where its template has that switch
    #[arg(long, conflicts_with = "raw")]
    pub(crate) no_think: bool,
    /// Most tokens to reason with; then the answer begins [default: as many as the model takes]
    #[arg(long, value_name = "N", conflicts_with = "raw")]
    pub(crate) thinking_budget: Option<u32>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print token counts and times to stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Smaller model of the same vocabulary that drafts for the model: the same answers, sooner where it is often right
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Layers on a card, from the last on; the others are the processor's: auto (as many as fit), all or a number [default: as the daemon does]
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<hanzo_engine_daemon::config::GpuLayers>,
    /// Of the daemon's devices those that it may be on, such as cuda:1, or the numbers of cards (0,1) [default: any]
    #[arg(long, value_name = "NAMES")]
    pub(crate) gpu_devices: Option<hanzo_engine_daemon::config::Devices>,
    /// How keys and values are stored, when this process loads the model itself [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvTypeName>,
    /// How long the model stays loaded after the last answer: seconds or a time such as 5m, 0 for at once, -1 for good. One that was
    /// loaded by its name stays as that said [default: as the daemon keeps them, 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) keep_alive: Option<hanzo_engine_daemon::config::KeepAlive>,
    /// How much is logged, on stderr, when this process loads the model itself
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    pub(crate) log_level: LogLevel,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) overrides: OverrideArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// `ps`
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON: an array of loaded models
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `stop`
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Name of the loaded model
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// End its running requests with an error instead of letting them finish
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON: one object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `bench`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hanzo-engine bench                                            the built-in demo model
  hanzo-engine bench --model ./qwen3-4b-Q8_0.gguf -p 512 -n 64 -r 3 --threads 8 --limits
  hanzo-engine bench --model ./qwen3-4b-Q8_0.gguf -p 512 -n 64 --depth 0,4096
  hanzo-engine bench --model ./qwen3-4b-Q8_0.gguf -p 0 -n 64 --batch 1,4,16 --json

pp512 is the speed of reading a prompt of 512 tokens, tg64 that of generating 64 tokens one by one: tokens per second, mean and standard deviation over the repetitions. tg64@d4096 begins with 4096 tokens in the KV cache, which are not timed. tg64 b16 is 16 sequences that generate together, each 64 tokens; the speed is that of all.

--limits measures what this machine's threads can do at most: bytes read from memory in a second, and multiplications and additions of bytes (int8) and of f32. A generation's share of reads is that of the weights and the KV cache it had to read; the share of arithmetic is that of its matrices' products, without attention. The table shows the larger.

--json prints {\"device\", \"limits\": null or {\"read_bytes_per_s\", \"int8_ops_per_s\", \"f32_ops_per_s\"}, \"rows\": [{\"test\", \"kind\": \"prompt\" or \"generation\", \"n_prompt\", \"n_gen\", \"depth\", \"batch\", \"tokens_per_s\", \"stddev\", \"samples\", \"shares\": null or {\"read\": null for prompts, \"arithmetic\"}}]}; shares are 1 at the limit.")]
pub(crate) struct BenchArgs {
    /// Path to a GGUF file or a safetensors directory, or the name of a model
    #[arg(long, short, value_name = "FILE", default_value = hanzo_engine_daemon::DEMO_MODEL)]
    pub(crate) model: String,
    /// Prompt lengths in tokens, separated by commas; 0 leaves the test out
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) prompt: Vec<u32>,
    /// Numbers of tokens to generate, separated by commas; 0 leaves the test out
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) generate: Vec<u32>,
    /// Tokens in the KV cache before each test, in whole blocks of 16, separated by commas
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) depth: Vec<u32>,
    /// Sequences that generate together, separated by commas
    #[arg(short = 'b', long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// Repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Threads to compute with [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// What computes: cpu, a card such as cuda:0, or cards that share the model, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "cpu")]
    pub(crate) device: Vec<hanzo_engine_daemon::config::DeviceName>,
    /// Layers on those cards, from the last on; the others are the processor's
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<u32>,
    /// How several cards share the model: by layer, or by row, all computing each layer together
    #[arg(long, value_name = "HOW", default_value = "layer")]
    pub(crate) split_mode: hanzo_engine_daemon::config::SplitMode,
    /// How keys and values are stored
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: KvTypeName,
    /// Measure this machine too, and show each result as a share of what it can do
    #[arg(long)]
    pub(crate) limits: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some() || id == "help", "{} {id}", command.get_name());
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let refused = [
            "serve --port 70000",
            "serve --threads 0",
            "serve --memory-budget lots",
            "serve --kv-type q4_0",
            "serve --host example",
            "run m --temperature nan",
            "run m --temperature 2.5",
            "run m --max-tokens 0",
            "run m --top-k -1",
            "run m --regex a --choice b",
            "run m --json-object --json-schema {}",
            "run m --think --no-think",
            "run m --raw --system x",
            "run m --raw --thinking-budget 5",
            "run m --thinking-budget -1",
            "embed text",
            "embed -m m text --input x.txt",
            "embed -m m text --batch 0",
            "embed -m m text --prompt-name query --instruction x",
            "rerank -m m document",
            "rerank -m m -q query --top-n 0 document",
            "bench -r 0",
            "bench -p -1",
            "rm",
            "pull",
            "pull x --json --quiet",
            "cp x",
            "export x",
            "import",
            "completions tcsh",
            "keys create",
            "keys create a --concurrency 0",
            "keys revoke",
        ];
        for line in refused {
            let words = ["hanzo-engine"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn lists_and_repeats() {
        let line = "hanzo-engine bench -p 128,512 -p 0 -n 64 -r 3 --threads 2 --json";
        let Command::Bench(bench) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!((bench.prompt, bench.generate, bench.threads), (vec![128, 512, 0], vec![64], Some(2)));
        let line = "hanzo-engine serve --model a --model b --memory-budget 8GiB";
        let Command::Serve(serve) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!(serve.model, ["a", "b"]);
        assert_eq!(serve.memory_budget, Some(8 << 30));
        let line = "hanzo-engine export a b c.tar --json";
        let Command::Export(export) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!((export.models, export.file), (vec!["a".to_owned(), "b".to_owned()], "c.tar".into()));
        let line = "hanzo-engine pull x --include *.json --include *.gguf --quant Q8_0";
        let Command::Pull(pull) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!((pull.include.len(), pull.quant.as_deref()), (2, Some("Q8_0")));
    }
}
