//! Writer of server-sent events.

use serde::Serialize;

use crate::{limits::OBFUSCATED_BYTES, request_id::random_id};

/// Events in wire format.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(super) bytes: Vec<u8>,
    pub(super) obfuscate: bool,
}

impl Frames {
    /// Whether nothing has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Written bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes an event with a JSON object as its data.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.bytes, value)
            .expect("writing to memory cannot fail because chunks are plain structs with string keys");
        if self.obfuscate {
            self.pad(start);
        }
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// Writes a JSON object on a line, not as an event.
    pub(crate) fn line(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.bytes, value)
            .expect("writing to memory cannot fail because lines are plain objects with string keys");
        self.bytes.push(b'\n');
    }

    /// Writes an event of that name with a JSON object as its data.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.data(value);
    }

    /// Writes an event of that name whose data is the text of a JSON object. `padded` rounds up its size.
    pub(crate) fn text(&mut self, name: &str, json: &str, padded: bool) {
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"data: ");
        self.bytes.extend_from_slice(json.as_bytes());
        if padded {
            self.pad(start);
        }
        self.bytes.extend_from_slice(b"\n\n");
    }

    /// Adds a field of random letters at the end of the object that began at `start`, so that its size reveals
    /// little.
    fn pad(&mut self, start: usize) {
        const FIELD: &[u8] = br#","obfuscation":""#;
        if self.bytes.pop_if(|last| *last == b'}').is_none() {
            return;
        }
        self.bytes.extend_from_slice(FIELD);
        let written = self.bytes.len() - start;
        let mut letters = OBFUSCATED_BYTES - written % OBFUSCATED_BYTES;
        while letters > 0 {
            let id = random_id();
            let some = &id.as_bytes()[..letters.min(id.len())];
            self.bytes.extend_from_slice(some);
            letters -= some.len();
        }
        self.bytes.extend_from_slice(br#""}"#);
    }

    /// Writes the end of a successful stream.
    pub(super) fn done(&mut self) {
        self.bytes.extend_from_slice(b"data: [DONE]\n\n");
    }
}
