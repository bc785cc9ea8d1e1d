//! Tokens of a transcription. They are unknown before the audio is processed, so those of one window are
//! reserved, and more are charged as segments arrive.

use hanzo_engine_proto::v1::{TranscribeEvent, transcribe_event::Event};

use crate::{
    pass::Pass,
    refusal::Refusal,
    reservation::{Need, Reservation},
};

/// Maximum tokens of one audio window, in all supported models.
const WINDOW_TOKENS: u32 = 448;
/// Bytes of text a token, for engines that report no tokens.
const BYTES_PER_TOKEN: usize = 5;

/// Charged tokens of one transcription.
#[derive(Debug)]
pub struct TranscriptSpend {
    reservation: Reservation,
    charged: u32,
}

impl TranscriptSpend {
    /// Reserves the tokens of a window, or of a whole minute if that has fewer.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] if they are not available.
    pub fn reserve(pass: &Pass) -> Result<TranscriptSpend, Refusal> {
        let tokens = pass.tokens().map_or(0, |(limit, _)| limit.min(WINDOW_TOKENS));
        let reservation = pass.reserve(Need { prompt: 0, completion: u64::from(tokens) })?;
        Ok(TranscriptSpend { reservation, charged: 0 })
    }

    /// Charges the tokens of an event.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] if the key has no more. The caller must end the transcription.
    pub fn see(&mut self, event: &TranscribeEvent) -> Result<(), Refusal> {
        match &event.event {
            Some(Event::Segment(segment)) => {
                let tokens = segment.tokens.len().max(segment.text.len() / BYTES_PER_TOKEN);
                let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                self.reservation.charge_more(tokens)?;
                self.charged = self.charged.saturating_add(tokens);
            }
            Some(Event::Finished(finished)) => {
                self.finish(finished.prompt_tokens.saturating_add(finished.completion_tokens));
            }
            Some(Event::Started(_) | Event::Delta(_)) | None => {}
        }
        Ok(())
    }

    /// Charges the rest of the total `tokens`, and gives back the rest of the reservation.
    pub fn finish(&mut self, tokens: u32) {
        self.reservation.charge(tokens.saturating_sub(self.charged));
        self.charged = self.charged.max(tokens);
        self.reservation.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hanzo_engine_proto::v1::{
        TranscribeEvent, TranscribeFinished, TranscriptSegment, TranscriptToken, transcribe_event::Event,
    };

    use super::TranscriptSpend;
    use crate::{Pass, Record, Refusal, key::KeyDigest, pass::Holder};

    #[test]
    fn sound_is_charged_as_it_is_written_down_and_ends_with_the_keys_tokens() {
        let record = Record { name: "a".to_owned(), tokens_per_minute: Some(100), ..Record::default() };
        let digest = KeyDigest::of("a").unwrap();
        let pass = Pass::of(Arc::new(Holder {
            digest,
            record,
            random: true,
            usage: Arc::default(),
            revocation: Default::default(),
        }));
        let left = || pass.standing().tokens.unwrap().remaining;
        let segment = |tokens: usize| {
            let tokens = vec![TranscriptToken::default(); tokens];
            let segment = TranscriptSegment { tokens, ..TranscriptSegment::default() };
            TranscribeEvent { event: Some(Event::Segment(segment)) }
        };
        let mut spend = TranscriptSpend::reserve(&pass).unwrap();
        assert_eq!(left(), 0);
        assert!(TranscriptSpend::reserve(&pass).is_err(), "another waits");
        spend.see(&segment(60)).unwrap();
        let finished =
            TranscribeFinished { prompt_tokens: 4, completion_tokens: 60, ..TranscribeFinished::default() };
        spend.see(&TranscribeEvent { event: Some(Event::Finished(finished)) }).unwrap();
        assert_eq!(left(), 36);
        drop(spend);
        let mut spend = TranscriptSpend::reserve(&Pass::anyone()).unwrap();
        spend.see(&segment(1_000)).unwrap();
        let mut late = TranscriptSpend { reservation: super::Reservation::none(pass.clone()), charged: 0 };
        late.see(&segment(30)).unwrap();
        assert!(matches!(late.see(&segment(30)), Err(Refusal::Tokens { .. })));
    }
}
