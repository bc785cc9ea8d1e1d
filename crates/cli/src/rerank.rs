//! `rerank`: sorts documents by how well they answer a query.

use crate::args::RerankArgs;
use crate::connect;
use crate::error::CliError;
use crate::host::{Host, HostOptions};
use crate::input::{Input, ItemText};
use crate::print::{print_json, print_table};
use crate::table::Table;
use console::{Term, truncate_str};
use hanzo_engine_proto::v1;
use serde::Serialize;
use serde_json::value::RawValue;
use std::io::{IsTerminal, stdout};

/// Maximum documents of one command, all of which are in memory.
const DOCUMENTS_MAX: usize = 1 << 20;
/// Maximum documents of one request.
const BATCH_MAX: usize = 1024;
/// Bytes of documents after which a request takes no more, so that it fits a daemon's message.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Document with its score.
#[derive(Debug, Serialize)]
struct ScoredDocument {
    /// Position in the input, from 0.
    index: u64,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Box<RawValue>>,
    document: String,
}

/// Runs the command.
pub(crate) async fn rerank(args: RerankArgs) -> Result<(), CliError> {
    if args.query.is_empty() {
        return Err(CliError::Usage("--query is empty".to_owned()));
    }
    let mut documents = documents(&args)?;
    let usual = HostOptions::once(&args.model, &args.engine, &args.store);
    let wanted = HostOptions { log_level: args.log_level, ..usual };
    let mut host = Host::open(wanted).await?;
    let scored = score(&args, &mut host, &mut documents).await;
    let printed = scored.and_then(|()| {
        // Stable sort: the earlier of two documents with equal scores comes first.
        documents.sort_by(|a, b| b.score.total_cmp(&a.score));
        documents.truncate(args.top_n.map_or(usize::MAX, |top| top as usize));
        if args.json { print_json(&documents) } else { print_table(&table(&documents, width())) }
    });
    host.close(printed).await
}

/// Reads all documents, without scores.
fn documents(args: &RerankArgs) -> Result<Vec<ScoredDocument>, CliError> {
    let input = Input::new(&args.documents, args.input.as_deref(), args.input_format, args.field.as_deref())?;
    let input = input.ok_or_else(|| {
        CliError::Usage("nothing to order: give documents, or --input with a file or -".to_owned())
    })?;
    let mut items = input.items()?;
    let mut documents = Vec::new();
    let unread = |error| CliError::Input(format!("{}: {error}", input.name()));
    for index in 0.. {
        let Some(item) = items.next().map_err(unread)? else { break };
        match item.text {
            ItemText::Some(document) => {
                documents.push(ScoredDocument { index, score: 0.0, id: item.id, document })
            }
            ItemText::Blank => {}
            ItemText::Picture(_) => unreachable!("pictures are given to embed alone"),
            ItemText::Bad(why) => {
                return Err(CliError::Input(format!("{}: {why}", input.at(item.number))));
            }
        }
        if documents.len() > DOCUMENTS_MAX {
            return Err(CliError::Input(format!("{} has over {DOCUMENTS_MAX} documents", input.name())));
        }
    }
    Ok(documents)
}

/// Scores the documents, in several requests. A score does not depend on the other documents of its request.
async fn score(args: &RerankArgs, host: &mut Host, documents: &mut [ScoredDocument]) -> Result<(), CliError> {
    let mut left = documents;
    while !left.is_empty() {
        let (batch, rest) = left.split_at_mut(batch_len(left));
        let request = v1::RerankRequest {
            model: host.status.name.clone(),
            query: args.query.clone(),
            documents: batch.iter().map(|ranked| ranked.document.clone()).collect(),
            instruction: args.instruction.clone().unwrap_or_default(),
            raw_scores: args.raw_scores,
            truncate: !args.no_truncate,
            ..Default::default()
        };
        let answer = host.client.rerank(request).await.map_err(connect::failed)?.into_inner();
        if answer.results.len() != batch.len() {
            return Err(CliError::UnexpectedAnswer("a score for each document"));
        }
        for result in answer.results {
            let ranked = batch.get_mut(result.index as usize);
            ranked.ok_or(CliError::UnexpectedAnswer("indices of the documents"))?.score = result.score;
        }
        left = rest;
    }
    Ok(())
}

/// Number of `documents` that fit one request, at least one.
fn batch_len(documents: &[ScoredDocument]) -> usize {
    let mut bytes = 0;
    let fits = |ranked: &&ScoredDocument| {
        let before = bytes;
        bytes += ranked.document.len();
        before < BATCH_BYTES_MAX
    };
    documents.iter().take(BATCH_MAX).take_while(fits).count()
}

/// Columns of the terminal. None if the output goes elsewhere, where nothing is cut.
fn width() -> Option<usize> {
    stdout().is_terminal().then(|| usize::from(Term::stdout().size().1))
}

fn table(documents: &[ScoredDocument], width: Option<usize>) -> Table {
    let mut table = Table::new(&[">RANK", ">SCORE", "DOCUMENT"]);
    let scores: Vec<String> = documents.iter().map(|ranked| format!("{:.4}", ranked.score)).collect();
    let ranks = documents.len().to_string().len().max("RANK".len());
    let before = ranks + 2 + scores.iter().map(String::len).max().unwrap_or(0).max("SCORE".len()) + 2;
    for (at, (ranked, score)) in documents.iter().zip(scores).enumerate() {
        // Control characters become spaces, so that each document stays on one line.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let mut document: String = ranked.document.chars().map(plain).collect();
        if let Some(width) = width {
            document = truncate_str(&document, width.saturating_sub(before).max(8), "…").into_owned();
        }
        table.row([(at + 1).to_string(), score, document]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(index: u64, score: f32, document: &str) -> ScoredDocument {
        ScoredDocument { index, score, id: None, document: document.to_owned() }
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let documents = [ranked(3, 0.98768, "Paris is the\ncapital of France"), ranked(0, -11.5, "short")];
        let written = |width| {
            let mut text = Vec::new();
            table(&documents, width).write(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let whole = "RANK     SCORE  DOCUMENT\n   1    0.9877  Paris is the capital of France\n   2  -11.5000  short\n";
        assert_eq!(written(None), whole);
        let cut = "RANK     SCORE  DOCUMENT\n   1    0.9877  Paris is the c…\n   2  -11.5000  short\n";
        assert_eq!(written(Some(31)), cut);
    }

    #[test]
    fn requests_are_bounded_by_bytes_and_number() {
        let long = "x".repeat(BATCH_BYTES_MAX / 2);
        let documents: Vec<ScoredDocument> = (0..5).map(|index| ranked(index, 0.0, &long)).collect();
        assert_eq!(batch_len(&documents), 2);
        let larger = [ranked(0, 0.0, &"x".repeat(3 * BATCH_BYTES_MAX)), ranked(1, 0.0, "x")];
        assert_eq!(batch_len(&larger), 1, "at least one");
        let many: Vec<ScoredDocument> = (0..3_000).map(|index| ranked(index, 0.0, "x")).collect();
        assert_eq!(batch_len(&many), BATCH_MAX);
    }
}
