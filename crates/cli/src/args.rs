//! Definition of the command line: every command, argument and flag, with its help.

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
use hanzo_engine_process::settings::{FlagLayer, Serve};
use std::path::PathBuf;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Command line.
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

/// Command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models over HTTP (OpenAI's API) and gRPC until Ctrl-C
    Serve(ServeArgs),
    /// Ask a model once, or hold a conversation
    Run(RunArgs),
    /// Compute embeddings of a few texts, or of a file of any size
    Embed(EmbedArgs),
    /// Sort documents by how well they answer a query
    Rerank(RerankArgs),
    /// Transcribe sound files
    Transcribe(TranscribeArgs),
    /// Speak a text into a sound file, or list a model's voices
    Say(SayArgs),
    /// Fetch a model into the store
    Pull(PullArgs),
    /// List known models
    #[command(alias = "ls")]
    List(ListArgs),
    /// Describe a model
    Show(ShowArgs),
    /// Describe a model's files without loading it: its architecture, its memory use here, whether it can run
    Inspect(InspectArgs),
    /// Remove a model, but not files that are used in place
    Rm(RmArgs),
    /// Give a model another name
    Cp(CpArgs),
    /// Delete files that no model needs
    Gc(GcArgs),
    /// Read models' files again and compare digests
    Verify(VerifyArgs),
    /// Show the disk use of each model
    Du(DuArgs),
    /// Export models into one archive
    Export(ExportArgs),
    /// Import the models of an archive, without a network
    Import(ImportArgs),
    /// Check this machine and the model store, and repair the store
    Doctor(DoctorArgs),
    /// Load a model into the running daemon
    Load(LoadArgs),
    /// List the models loaded in the running daemon
    Ps(PsArgs),
    /// Unload a model from the running daemon
    Stop(StopArgs),
    /// Ask a server over HTTP whether it is ready, and which models it serves
    Health(HealthArgs),
    /// Offer the models as tools to the agent that starts this command, by MCP over stdin and stdout
    Mcp(McpArgs),
    /// Load, unload or list LoRA adapters of models in the running daemon
    Adapter(AdapterArgs),
    /// Create, list and revoke the API keys of a server
    Keys(KeysArgs),
    /// Quantise a model to fewer bits
    Quantize(QuantizeArgs),
    /// Compute an importance matrix of a model, for quantize --imatrix
    Imatrix(ImatrixArgs),
    /// Measure the speed of prefill and decode on this machine
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

/// Type of KV cache.
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

/// Arguments of `serve`.
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
    /// Model to load at startup, by name, reference or path; repeatable
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Vec<String>,
    /// LoRA adapter to load with the model, a PEFT directory or a GGUF file; repeatable
    #[arg(long, value_name = "NAME=PATH", value_parser = adapter::named_path)]
    pub(crate) adapter: Vec<(String, String)>,
    /// Format of the model's tool calls, such as hermes [default: from its chat template]
    #[arg(long, value_name = "FORMAT", value_parser = hanzo_engine_daemon::config::parse_tool_format)]
    pub(crate) tool_format: Option<String>,
    /// Smaller draft model with the same vocabulary: same answers, faster where its drafts are often accepted
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Pull models that are not on this machine without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Configuration file, TOML or YAML by its extension
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the effective settings (from file, environment and flags) with keys hidden; serve nothing
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Check the settings and the files that they name; serve nothing
    #[arg(long)]
    pub(crate) check_config: bool,
    #[command(flatten)]
    pub(crate) daemon: FlagLayer<hanzo_engine_daemon::Config, Serve>,
    #[command(flatten)]
    pub(crate) gateway: FlagLayer<hanzo_engine_gateway::Config, Serve>,
    #[command(flatten)]
    pub(crate) overrides: OverrideArgs,
}

/// Arguments of `run`.
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
    /// Question to ask; without it a conversation begins. Piped input is appended
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
    /// Picture for the model to see before the question: JPEG, PNG, WebP or GIF; up to 16 times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) image: Vec<PathBuf>,
    /// Sound for the model to hear before the question: wav, mp3, flac, ogg, webm, m4a, aac or aiff; up to 16
    /// times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) sound: Vec<PathBuf>,
    /// System message [default: the model's own, if any]
    #[arg(long, short, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Maximum tokens of the answer [default: the model's own limit, and the context that is left]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Text that ends the answer, instead of the model's own stop texts; up to 16 times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Let the model reason first, if its chat template has that switch
    #[arg(long, conflicts_with_all = ["no_think", "raw"])]
    pub(crate) think: bool,
    /// Do not let the model reason first, if its chat template has that switch
    #[arg(long, conflicts_with = "raw")]
    pub(crate) no_think: bool,
    /// Maximum tokens of reasoning, after which the answer begins [default: no limit]
    #[arg(long, value_name = "N", conflicts_with = "raw")]
    pub(crate) thinking_budget: Option<u32>,
    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print token counts and times to stderr
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Smaller draft model with the same vocabulary: same answers, faster where its drafts are often accepted
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Layers on GPUs, counted from the last; the others run on the CPU: auto (as many as fit), all or a number
    /// [default: the daemon's setting]
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<hanzo_engine_daemon::config::GpuLayers>,
    /// Devices of the daemon that the model may use, such as cuda:1, or GPU numbers (0,1) [default: any]
    #[arg(long, value_name = "NAMES")]
    pub(crate) gpu_devices: Option<hanzo_engine_daemon::config::Devices>,
    /// Type of the KV cache, if this process loads the model itself [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvTypeName>,
    /// Idle time after which the model is unloaded: seconds or a time such as 5m, 0 for at once, -1 for never. No
    /// effect on a model loaded by `load` or the configuration [default: the daemon's setting, 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) keep_alive: Option<hanzo_engine_daemon::config::KeepAlive>,
    /// Log level, on stderr, if this process loads the model itself
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

/// Arguments of `ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON: an array of loaded models
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Arguments of `stop`.
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

/// Arguments of `bench`.
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
    /// Prompt lengths in tokens, separated by commas; 0 skips the test
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) prompt: Vec<u32>,
    /// Numbers of tokens to generate, separated by commas; 0 skips the test
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) generate: Vec<u32>,
    /// Tokens in the KV cache before each test, in whole blocks of 16, separated by commas
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0",
          value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) depth: Vec<u32>,
    /// Batch sizes: sequences that are decoded together, separated by commas
    #[arg(short = 'b', long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// Repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Compute threads [default: one for each core]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Device: cpu, a GPU such as cuda:0, or GPUs that share the model, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "cpu")]
    pub(crate) device: Vec<hanzo_engine_daemon::config::DeviceName>,
    /// Layers on those GPUs, counted from the last; the others run on the CPU
    #[arg(long, alias = "n-gpu-layers", value_name = "N")]
    pub(crate) gpu_layers: Option<u32>,
    /// How several GPUs share the model: by layer, or by row, all computing each layer together
    #[arg(long, value_name = "HOW", default_value = "layer")]
    pub(crate) split_mode: hanzo_engine_daemon::config::SplitMode,
    /// Type of the KV cache
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv_type: KvTypeName,
    /// Measure the limits of this machine too, and show each result as a share of them
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
        assert_eq!(serve.daemon.values["engine"]["memory_budget_bytes"], 8_u64 << 30);
        let line = "hanzo-engine export a b c.tar --json";
        let Command::Export(export) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!((export.models, export.file), (vec!["a".to_owned(), "b".to_owned()], "c.tar".into()));
        let line = "hanzo-engine pull x --include *.json --include *.gguf --quant Q8_0";
        let Command::Pull(pull) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        assert_eq!((pull.include.len(), pull.quant.as_deref()), (2, Some("Q8_0")));
    }
}
