//! Record of an answered request: the response as sent, and every item that the model was shown before it. Also
//! the ids of responses and items; an item's id contains that of its response.

use sha2::{Digest as _, Sha256};

use crate::json::Json;

/// Prefix of a response's id.
pub(crate) const RESPONSE: &str = "resp_";
/// Number of digits after the prefix of a response's id.
const ID_DIGITS: usize = 32;
/// Head of a file; a digest of the rest follows.
const HEADING: &str = "hanzo-response 1 ";
/// Estimated bytes of a record in memory, in addition to its texts.
const RECORD_BYTES: usize = 256;

/// Stored response.
#[derive(Debug, PartialEq)]
pub(crate) struct StoredResponse {
    /// Name of the requester's key; empty without keys.
    pub(crate) owner: String,
    /// Items before the response, including those of earlier responses: a JSON array; each has an id.
    pub(crate) input: String,
    /// Response: a JSON object.
    pub(crate) response: String,
}

impl StoredResponse {
    /// Estimated bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.owner.len() + self.input.len() + self.response.len() + RECORD_BYTES
    }

    /// Items of the response itself: a JSON array.
    pub(crate) fn output(&self) -> String {
        let response = Json::parse(&self.response).ok();
        let output = response.and_then(|json| member(json, "output"));
        output.map_or_else(|| "[]".to_owned(), Json::to_text)
    }

    /// Items before the response and those of it, as members of an array.
    pub(crate) fn items(&self) -> String {
        let output = self.output();
        let inner = |list: &str| {
            let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
            list.unwrap_or_default().to_owned()
        };
        let lists = [inner(&self.input), inner(&output)];
        lists.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join(",")
    }

    /// Item of that id, before the response or in it.
    pub(crate) fn item(&self, id: &str) -> Option<String> {
        let found = |list: &str| {
            let list = Json::parse(list).ok()?;
            let is = |item: &Json<'_>| {
                member(*item, "id").and_then(|own| own.as_str()).is_some_and(|own| own == id)
            };
            list.elements()?.find(is).map(Json::to_text)
        };
        found(&self.output()).or_else(|| found(&self.input))
    }

    /// Content of its file.
    pub(crate) fn to_file(&self) -> Vec<u8> {
        let owner = quoted(&self.owner);
        let body = format!("{{\"owner\":{owner},\"input\":{},\"response\":{}}}", self.input, self.response);
        format!("{HEADING}{}\n{body}", digest(body.as_bytes())).into_bytes()
    }

    /// Parses a file. None: it is damaged or not a response.
    pub(crate) fn of_file(bytes: Vec<u8>) -> Option<StoredResponse> {
        let text = String::from_utf8(bytes).ok()?;
        let (written, body) = text.strip_prefix(HEADING)?.split_once('\n')?;
        if written != digest(body.as_bytes()) {
            return None;
        }
        let json = Json::parse(body).ok()?;
        let owner = member(json, "owner")?.as_str()?.into_owned();
        let list = member(json, "input").filter(|input| input.is_array())?;
        let response = member(json, "response").filter(|response| response.is_object())?;
        Some(StoredResponse { owner, input: list.to_text(), response: response.to_text() })
    }
}

/// Member of an object by name.
pub(crate) fn member<'a>(json: Json<'a>, name: &str) -> Option<Json<'a>> {
    json.members()?.find(|member| member.0 == name).map(|member| member.1)
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is always JSON")
}

/// Whether a text has the form of this gateway's response ids; no other text names a file.
pub(crate) fn is_id(id: &str) -> bool {
    let digits = id.strip_prefix(RESPONSE).unwrap_or_default();
    digits.len() == ID_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Id of the item at a position among all items of a response, input first.
pub(crate) fn item_id(kind: &str, response: &str, place: usize) -> String {
    format!("{kind}_{}{place:04x}", response.strip_prefix(RESPONSE).unwrap_or(response))
}

/// Id of the response that an item belongs to.
pub(crate) fn response_of(item: &str) -> Option<String> {
    let (_, digits) = item.split_once('_')?;
    let id = format!("{RESPONSE}{}", digits.get(..ID_DIGITS)?);
    is_id(&id).then_some(id)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> StoredResponse {
        StoredResponse {
            owner: "a \"key\"".to_owned(),
            input: r#"[{"id":"msg_1","content":"é\n"}]"#.to_owned(),
            response: r#"{"id":"resp_1","output":[{"id":"msg_2"}]}"#.to_owned(),
        }
    }

    #[test]
    fn a_file_gives_back_what_was_written_and_nothing_else() {
        let file = stored().to_file();
        assert_eq!(StoredResponse::of_file(file.clone()), Some(stored()));
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_eq!(StoredResponse::of_file(damaged), None, "byte {at}");
            assert_eq!(StoredResponse::of_file(file[..at].to_vec()), None, "cut at {at}");
        }
    }

    #[test]
    fn an_item_is_found_by_its_id_and_says_what_it_is_of() {
        assert_eq!(stored().item("msg_2").as_deref(), Some(r#"{"id":"msg_2"}"#));
        assert_eq!(stored().item("msg_1").as_deref(), Some(r#"{"id":"msg_1","content":"é\n"}"#));
        assert_eq!(stored().item("msg_3"), None);
        let id = format!("resp_{}", "0123456789abcdef".repeat(2));
        assert!(is_id(&id));
        assert_eq!(response_of(&item_id("fc", &id, 70_000)), Some(id.clone()));
        for other in ["", "msg", "msg_12", "fc_../../etc/passwd", &format!("msg_{}", "é".repeat(32))] {
            assert_eq!(response_of(other), None, "{other}");
        }
        for other in ["resp_../../../../../../../etc/passwd", "resp_", &id.to_uppercase(), &id[5..]] {
            assert!(!is_id(other), "{other}");
        }
    }
}
