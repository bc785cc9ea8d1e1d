//! Conversion of an upstream chat completion's stream to the engine's events.

use std::collections::BTreeMap;

use hanzo_engine_proto::v1::{self, FinishReason, infer_event::Event};
use serde::Deserialize;

use super::answer::CloudUsage;

/// Tool calls of a choice, and whether each has arguments so far.
type Calls = BTreeMap<u32, bool>;

/// State of the conversion.
#[derive(Debug)]
pub(super) struct ChunkConverter {
    model: String, // local name
    request_id: String,
    choices: usize,
    begun: bool,
    ended: BTreeMap<u32, FinishReason>,
    calls: BTreeMap<u32, Calls>,
    usage: CloudUsage,
}

/// Reason why the stream cannot be continued.
#[derive(Debug, PartialEq)]
pub(super) struct Broken(pub(super) &'static str);

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<CloudUsage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CloudCall>>,
}

#[derive(Deserialize)]
struct CloudCall {
    #[serde(default)]
    index: u32,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

impl ChunkConverter {
    /// Starts the conversion of a stream with `choices` choices.
    pub(super) fn new(model: String, request_id: String, choices: usize) -> ChunkConverter {
        let (ended, calls) = (BTreeMap::new(), BTreeMap::new());
        ChunkConverter {
            model,
            request_id,
            choices,
            begun: false,
            ended,
            calls,
            usage: CloudUsage::default(),
        }
    }

    /// Converts the lines of some server-sent events. `Finished` events follow at the end of the stream, when the
    /// usage is known.
    pub(super) fn see(&mut self, text: &[u8]) -> Result<Vec<v1::InferEvent>, Broken> {
        let mut events = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
            if data == b"[DONE]" {
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(data)
                .map_err(|_| Broken("an event of its answer is no chat completion's"))?;
            if chunk.error.is_some() {
                return Err(Broken("it failed in the middle of its answer"));
            }
            if !self.begun {
                self.begun = true;
                let started = v1::Started {
                    model: self.model.clone(),
                    request_id: self.request_id.clone(),
                    ..v1::Started::default()
                };
                events.push(event(Event::Started(started)));
            }
            if let Some(usage) = chunk.usage {
                self.usage = usage;
            }
            for choice in chunk.choices {
                if choice.index as usize >= self.choices {
                    return Err(Broken("it answers with more choices than it was asked for"));
                }
                events.extend(self.delta(&choice).map(event));
                if let Some(reason) = choice.finish_reason {
                    self.ended.insert(choice.index, finish(&reason));
                }
            }
        }
        Ok(events)
    }

    fn delta(&mut self, choice: &Choice) -> Option<Event> {
        let delta = choice.delta.as_ref()?;
        let calls = self.calls.entry(choice.index).or_default();
        let parts = delta.tool_calls.iter().flatten().map(|call| {
            let function = call.function.as_ref();
            let arguments_json = function.and_then(|function| function.arguments.clone()).unwrap_or_default();
            let is_new = !calls.contains_key(&call.index);
            *calls.entry(call.index).or_default() |= !arguments_json.is_empty();
            let name =
                function.and_then(|function| function.name.clone()).filter(|_| is_new).unwrap_or_default();
            let id = call.id.clone().filter(|id| is_new && !id.is_empty());
            let id =
                id.unwrap_or_else(|| if is_new { format!("call_{}", call.index) } else { String::new() });
            v1::ToolCallDelta { index: call.index, id, name, arguments_json, broken: false }
        });
        let tool_calls: Vec<v1::ToolCallDelta> = parts.collect();
        // A refusal is passed on as text.
        let text = [&delta.content, &delta.refusal].into_iter().flatten().cloned().collect::<String>();
        let reasoning = delta.reasoning_content.clone().unwrap_or_default();
        let says_something = !(text.is_empty() && reasoning.is_empty() && tool_calls.is_empty());
        says_something.then(|| {
            Event::Delta(v1::Delta {
                choice: choice.index,
                text,
                reasoning,
                tool_calls,
                ..v1::Delta::default()
            })
        })
    }

    /// Events at the end of the stream.
    pub(super) fn end(&mut self) -> Result<Vec<v1::InferEvent>, Broken> {
        if self.ended.len() < self.choices {
            return Err(Broken("its answer ended before it was whole"));
        }
        let mut events = Vec::new();
        for (choice, reason) in std::mem::take(&mut self.ended) {
            let calls = self.calls.remove(&choice).unwrap_or_default();
            // A call without arguments gets an empty object.
            let bare = calls.iter().filter(|(_, said)| !**said).map(|(index, _)| v1::ToolCallDelta {
                index: *index,
                arguments_json: "{}".to_owned(),
                ..v1::ToolCallDelta::default()
            });
            let tool_calls: Vec<v1::ToolCallDelta> = bare.collect();
            if !tool_calls.is_empty() {
                events.push(event(Event::Delta(v1::Delta { choice, tool_calls, ..v1::Delta::default() })));
            }
            let reason = if calls.is_empty() || reason == FinishReason::Length {
                reason
            } else {
                FinishReason::ToolCalls
            };
            // The usage of the whole answer is reported with its first choice.
            let usage = (choice == 0).then(|| self.usage.wire());
            let finished = v1::Finished { choice, reason: reason.into(), usage, ..v1::Finished::default() };
            events.push(event(Event::Finished(finished)));
        }
        Ok(events)
    }
}

fn event(of: Event) -> v1::InferEvent {
    v1::InferEvent { event: Some(of) }
}

fn finish(reason: &str) -> FinishReason {
    match reason {
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        _ => FinishReason::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(events: &[&str]) -> Result<Vec<Event>, Broken> {
        let mut converter = ChunkConverter::new("here".to_owned(), "id".to_owned(), 1);
        let mut all = Vec::new();
        for data in events {
            all.extend(converter.see(format!("data: {data}\r\n\r\n").as_bytes())?);
        }
        all.extend(converter.end()?);
        Ok(all.into_iter().filter_map(|event| event.event).collect())
    }

    #[test]
    fn an_answer_is_text_thought_calls_and_what_they_took() {
        let all = converted(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"hm"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}],"usage":null}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"name":"g","arguments":"{\"x\""}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":":1}"}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":7},"completion_tokens_details":{"reasoning_tokens":2}}}"#,
            "[DONE]",
        ])
        .unwrap();
        let delta = |text: &str, reasoning: &str, calls: &[(u32, &str, &str, &str)]| {
            let call = |&(index, id, name, arguments): &(u32, &str, &str, &str)| v1::ToolCallDelta {
                index,
                id: id.to_owned(),
                name: name.to_owned(),
                arguments_json: arguments.to_owned(),
                broken: false,
            };
            let (text, reasoning) = (text.to_owned(), reasoning.to_owned());
            Event::Delta(v1::Delta {
                text,
                reasoning,
                tool_calls: calls.iter().map(call).collect(),
                ..Default::default()
            })
        };
        let started =
            v1::Started { model: "here".to_owned(), request_id: "id".to_owned(), ..v1::Started::default() };
        let usage = v1::Usage {
            prompt_tokens: 30,
            cached_tokens: 7,
            completion_tokens: 12,
            reasoning_tokens: 2,
            ..Default::default()
        };
        let finished =
            v1::Finished { reason: FinishReason::ToolCalls.into(), usage: Some(usage), ..Default::default() };
        let expected = [
            Event::Started(started),
            delta("", "hm", &[]),
            delta("Hi", "", &[]),
            delta("", "", &[(0, "a", "f", "")]),
            delta("", "", &[(1, "call_1", "g", "{\"x\"")]),
            delta("", "", &[(1, "", "", ":1}")]),
            delta("", "", &[(0, "", "", "{}")]),
            Event::Finished(finished),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_is_no_answer_is_said_to_be_none() {
        for (events, broken) in [
            (&["nothing"][..], "an event of its answer is no chat completion's"),
            (&[r#"{"error":{"message":"x"}}"#], "it failed in the middle of its answer"),
            (
                &[r#"{"choices":[{"index":1,"delta":{}}]}"#],
                "it answers with more choices than it was asked for",
            ),
            (
                &[r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#],
                "its answer ended before it was whole",
            ),
            (&[], "its answer ended before it was whole"),
        ] {
            assert_eq!(converted(events), Err(Broken(broken)), "{events:?}");
        }
    }
}
