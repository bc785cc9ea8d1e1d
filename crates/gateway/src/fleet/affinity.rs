//! Affinity of requests that can share a prefix cache: those whose prompts begin alike. All turns of a
//! conversation have the same instructions and first question, so both together identify it. Instructions alone
//! may be shared by many conversations.

use hanzo_engine_proto::v1::{self, content_part::Part, infer_request::Prompt};

use crate::limits::{AFFINITY_BYTES_MAX, AFFINITY_TEXT_BYTES, AFFINITY_TOKENS};

/// Affinity key of requests that share a prefix. None: there is no shared prefix to use.
pub(crate) fn key_of(request: &v1::InferRequest) -> Option<u64> {
    if request.cache_prompt == Some(false) {
        return None;
    }
    let mut key = Key::new();
    key.text(&request.model.to_lowercase());
    key.text(&request.adapter);
    key.text(&request.cache_salt);
    match request.prompt.as_ref()? {
        Prompt::Chat(chat) => {
            for message in &chat.messages {
                key.text(&message.role);
                for part in &message.content {
                    match &part.part {
                        Some(Part::Text(text)) => key.text(text),
                        Some(Part::Media(media)) => key.bytes(&media.data),
                        None => {}
                    }
                }
                if message.role == "user" {
                    break;
                }
            }
        }
        Prompt::Text(text) => key.bytes(&text.as_bytes()[..text.len().min(AFFINITY_TEXT_BYTES)]),
        Prompt::Tokens(tokens) => {
            for id in tokens.ids.iter().take(AFFINITY_TOKENS) {
                key.bytes(&id.to_le_bytes());
            }
        }
    }
    Some(key.end())
}

/// Hash of a name, the same in every gateway.
pub(crate) fn hash(name: &str) -> u64 {
    let mut key = Key::new();
    key.text(name);
    key.end()
}

/// Score of a daemon for an affinity key. The daemon with the highest score gets the request (rendezvous
/// hashing), so a daemon that joins or leaves moves only its own share.
pub(crate) fn attraction(key: u64, member: u64) -> u64 {
    mixed(key ^ mixed(member))
}

/// Mixes the bits of a number (finalizer of splitmix64).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// FNV-1a over eight bytes at a time. It need not resist collisions: the daemons' prefix caches use their own
/// digests.
struct Key {
    sum: u64,
    bytes: usize,
}

impl Key {
    fn new() -> Key {
        Key { sum: 0xCBF2_9CE4_8422_2325, bytes: 0 }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.word(u64::MAX);
    }

    /// Adds bytes, up to a total of `AFFINITY_BYTES_MAX`.
    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(AFFINITY_BYTES_MAX - self.bytes)];
        self.bytes += bytes.len();
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    fn word(&mut self, word: u64) {
        self.sum = (self.sum ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        self.sum ^= self.sum >> 32;
    }

    fn end(self) -> u64 {
        mixed(self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(turns: &[(&str, &str)]) -> v1::InferRequest {
        let message = |(role, text): &(&str, &str)| v1::Message {
            role: (*role).to_owned(),
            content: vec![v1::ContentPart { part: Some(Part::Text((*text).to_owned())) }],
            ..Default::default()
        };
        let messages = turns.iter().map(message).collect();
        let prompt = Some(Prompt::Chat(v1::Chat { messages, ..Default::default() }));
        v1::InferRequest { model: "m".to_owned(), prompt, ..Default::default() }
    }

    #[test]
    fn a_conversations_turns_have_one_key_and_others_have_others() {
        let first = chat(&[("system", "be kind"), ("user", "hello")]);
        let later = chat(&[("system", "be kind"), ("user", "hello"), ("assistant", "hi"), ("user", "more")]);
        assert!(key_of(&first).is_some());
        assert_eq!(key_of(&first), key_of(&later));
        let salted = v1::InferRequest { cache_salt: "tenant".to_owned(), ..first.clone() };
        let of_another = v1::InferRequest { model: "n".to_owned(), ..first.clone() };
        for other in [
            chat(&[("system", "be kind"), ("user", "hello!")]),
            chat(&[("system", "be unkind"), ("user", "hello")]),
            chat(&[("system", "be kindu"), ("user", "ser"), ("user", "hello")]),
            salted,
            of_another,
        ] {
            assert_ne!(key_of(&first), key_of(&other), "{other:?}");
        }
        assert_eq!(key_of(&v1::InferRequest { cache_prompt: Some(false), ..first }), None);
    }

    #[test]
    fn a_text_is_known_by_how_it_begins() {
        let text = |text: String| v1::InferRequest { prompt: Some(Prompt::Text(text)), ..Default::default() };
        let begin = "x".repeat(AFFINITY_TEXT_BYTES);
        assert_eq!(key_of(&text(begin.clone())), key_of(&text(begin.clone() + " and more")));
        assert_ne!(key_of(&text(begin.clone())), key_of(&text(format!("y{begin}"))));
        // Bytes beyond the bound are ignored without an error.
        let long = "z".repeat(AFFINITY_BYTES_MAX);
        let ask = |last: &str| chat(&[("system", &long), ("system", "more"), ("user", last)]);
        assert!(key_of(&ask("a")).is_some());
    }

    #[test]
    fn a_daemon_that_leaves_moves_its_own_share_alone() {
        let members: Vec<u64> = (0..5).map(|i| hash(&format!("10.0.0.{i}:36901"))).collect();
        let best = |key: u64, members: &[u64]| {
            members.iter().copied().max_by_key(|member| attraction(key, *member)).unwrap()
        };
        let mut shares = [0; 5];
        for key in (0..5000).map(mixed) {
            let before = best(key, &members);
            shares[members.iter().position(|member| *member == before).unwrap()] += 1;
            let after = best(key, &members[1..]);
            assert!(before == members[0] || before == after);
        }
        assert!(shares.iter().all(|share| (850..1150).contains(share)), "{shares:?}");
    }
}
