//! Items of one request, from the input to the written records.

use super::output::VectorFormat;
use super::partial::{ItemOutcome, Record};
use super::request::{EmbedClient, EmbedItem};
use crate::error::CliError;
use crate::input::{ItemText, Items};
use crate::shown::picture;
use std::io;

/// Maximum bytes of a batch's lines before it takes no more, so that it fits a daemon's message.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Items that are sent in one request.
pub(crate) struct Batch {
    items: Vec<WaitingItem>,
}

struct WaitingItem {
    number: u64,
    chain: u64,
    carried: Vec<u8>,
    text: ItemText,
}

/// Result of a batch.
#[derive(Debug)]
pub(crate) struct EmbeddedBatch {
    /// Records in the order of the items.
    pub(crate) records: Vec<Record>,
    /// Number of tokens of all inputs.
    pub(crate) tokens: u64,
}

impl Batch {
    /// Reads at most `rows` items. None at the end of the input.
    pub(crate) fn read(items: &mut Items, kind: VectorFormat, rows: usize) -> io::Result<Option<Self>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < rows && bytes < BATCH_BYTES_MAX {
            let Some(mut item) = items.next()? else { break };
            bytes += item.line.len();
            if let ItemText::Picture(path) = &item.text {
                bytes += std::fs::metadata(path).map_or(0, |file| file.len() as usize);
            }
            let carried = kind.carried(&mut item);
            batch.push(WaitingItem { number: item.number, chain: item.chain, carried, text: item.text });
        }
        Ok((!batch.is_empty()).then_some(Self { items: batch }))
    }

    /// Requests the vectors.
    pub(crate) async fn embed(self, embed_client: EmbedClient) -> Result<EmbeddedBatch, CliError> {
        let mut asked = Vec::new();
        let mut place = |text: ItemText| match text {
            ItemText::Some(text) => {
                asked.push(EmbedItem::Text(text));
                None
            }
            ItemText::Picture(path) => match picture(&path) {
                Ok(bytes) => {
                    asked.push(EmbedItem::Picture(bytes));
                    None
                }
                Err(error) => Some(ItemOutcome::Failed(error.to_string())),
            },
            ItemText::Blank => Some(ItemOutcome::Blank),
            ItemText::Bad(why) => Some(ItemOutcome::Failed(why)),
        };
        let places: Vec<(Option<ItemOutcome>, u64, u64, Vec<u8>)> = self
            .items
            .into_iter()
            .map(|item| (place(item.text), item.number, item.chain, item.carried))
            .collect();
        let vectors = embed_client.vectors(asked).await?;
        let mut each = vectors.each.into_iter().map(|vector| match vector {
            Ok(vector) => ItemOutcome::Vector(vector),
            Err(why) => ItemOutcome::Failed(why),
        });
        let mut records = Vec::new();
        for (outcome, number, chain, carried) in places {
            let outcome = outcome
                .or_else(|| each.next())
                .ok_or(CliError::UnexpectedAnswer("a vector for each input"))?;
            records.push(Record { number, chain, carried, outcome });
        }
        Ok(EmbeddedBatch { records, tokens: vectors.tokens })
    }
}
