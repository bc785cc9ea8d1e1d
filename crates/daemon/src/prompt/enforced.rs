//! Constraint on a response from a chat's tools and a requested constraint together.

use std::sync::Arc;

use hanzo_engine_constraints::{Grammar, Spec, json_in_lark};
use hanzo_engine_formats::Demand;
use hanzo_engine_runtime::{CallReading, ClientId, RequestError, TextModel, Tool, ToolFormat};

use super::{ToolChoice, ToolUse};
use crate::{error::Error, served::ServedModel};

/// Compiled constraint of the response, and the parser of tool calls if there may be any.
pub(crate) fn constraint_of(
    tools: Option<ToolUse>,
    asked: Option<Spec>,
    is_chat: bool,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<(Option<CallReading>, Option<Arc<Grammar>>), Error> {
    let text = &served.text;
    let compiled = |spec| served.constraints.compiled(spec, text, client, interrupted);
    match tools {
        Some(used) => {
            let ToolConstraint { calls, spec, must } = enforced(used, text, asked, interrupted)?;
            let constraint = match spec.map(compiled).transpose() {
                // Too many tools to compile a constraint for are still usable without one.
                Err(Error::Field { .. } | Error::Busy { .. }) if !must => None,
                Err(Error::Field { reason, .. }) if calls.is_some() => {
                    return Err(Error::field("tools", reason));
                }
                constraint => constraint?,
            };
            Ok((calls, constraint))
        }
        None => {
            let constraint = if is_chat { within_channels(asked, text, interrupted)? } else { asked };
            Ok((None, constraint.map(compiled).transpose()?))
        }
    }
}

/// Constraint that a chat's tools put on its answer.
struct ToolConstraint {
    /// Parser of tool calls, if there may be any.
    calls: Option<CallReading>,
    /// Constraint that the response must satisfy.
    spec: Option<Spec>,
    /// Whether the request fails without that constraint.
    must: bool,
}

/// Combines tools and a requested constraint.
///
/// # Errors
/// An error of the field if a choice or a schema cannot be enforced; [`RequestError::Interrupted`].
fn enforced(
    used: ToolUse,
    text: &TextModel,
    asked: Option<Spec>,
    interrupted: &dyn Fn() -> bool,
) -> Result<ToolConstraint, Error> {
    let only = |spec: Option<Spec>| Ok(ToolConstraint { calls: None, spec, must: true });
    let tools: Vec<Tool> = match &used.choice {
        ToolChoice::None => return only(asked),
        ToolChoice::Auto | ToolChoice::Required => used.tools,
        ToolChoice::Named(name) => used.tools.into_iter().filter(|tool| tool.name == *name).collect(),
    };
    let Some(format) = used.format.or(text.tool_format) else { return only(asked) };
    let required = used.choice != ToolChoice::Auto;
    let schema = |source: &str| json_in_lark(source, interrupted).map_err(|error| error.to_string());
    let refused = |field: &str, reason: String| refused(field, reason, interrupted);
    let document = match asked {
        None => None,
        Some(_) if required => None,
        Some(Spec::JsonObject) => Some(schema("{\"type\":\"object\"}")),
        Some(Spec::JsonSchema(source)) => Some(schema(&source)),
        Some(_) => {
            let reason =
                "beside tools that may be called only a JSON object or a JSON schema can be asked for";
            return Err(Error::field("constraint", reason));
        }
    };
    let document = document.transpose().map_err(|reason| refused("constraint", reason))?;
    let must = required || document.is_some() || tools.iter().any(|tool| tool.strict);
    let vocabulary = text.vocabulary().map_err(|error| Error::field("tool_use", error.to_string()))?;
    let demand =
        Demand { format, tools: &tools, required, parallel: used.parallel, document: document.as_deref() };
    let grammar = demand.grammar(&|mark| vocabulary.control(mark), &schema);
    let grammar = grammar.map_err(|reason| refused("tools", reason))?;
    if interrupted() {
        return Err(RequestError::Interrupted.into());
    }
    let calls = CallReading { format, tools: tools.into(), required, parallel: used.parallel };
    Ok(ToolConstraint { calls: Some(calls), spec: Some(Spec::Schemas(grammar)), must })
}

/// Constraint for a document from a model that answers in channels: it applies to the final message.
///
/// # Errors
/// An error of the field if its schema cannot be enforced; [`RequestError::Interrupted`].
fn within_channels(
    asked: Option<Spec>,
    text: &TextModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<Spec>, Error> {
    let Some(format @ ToolFormat::Harmony) = text.tool_format else { return Ok(asked) };
    let source = match &asked {
        Some(Spec::JsonObject) => "{\"type\":\"object\"}",
        Some(Spec::JsonSchema(source)) => source,
        _ => return Ok(asked),
    };
    let refused = |reason| refused("constraint", reason, interrupted);
    let schema = |source: &str| json_in_lark(source, interrupted).map_err(|error| error.to_string());
    let document = schema(source).map_err(refused)?;
    let vocabulary = text.vocabulary().map_err(|error| refused(error.to_string()))?;
    let demand = Demand { format, tools: &[], required: false, parallel: false, document: Some(&document) };
    let grammar = demand.grammar(&|mark| vocabulary.control(mark), &schema).map_err(refused)?;
    Ok(Some(Spec::Schemas(grammar)))
}

/// Error of a field that cannot be enforced, or [`RequestError::Interrupted`] if the work was interrupted.
fn refused(field: &str, reason: String, interrupted: &dyn Fn() -> bool) -> Error {
    match interrupted() {
        true => RequestError::Interrupted.into(),
        false => Error::field(field, reason),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::source::ModelSource;

    #[test]
    fn schemas_that_nobody_waits_for_are_given_up() {
        let text = ModelSource::Demo.open().unwrap().text_model().unwrap();
        let schema = format!(
            r#"{{"type":"object","properties":{{{}}}}}"#,
            (0..300).map(|i| format!("\"p{i}\":{{\"type\":\"string\"}}")).collect::<Vec<_>>().join(",")
        );
        let tool = serde_json::json!({"type": "function", "function": {
            "name": "f", "parameters": serde_json::from_str::<serde_json::Value>(&schema).unwrap(),
        }});
        let asked = Cell::new(0);
        let given_up_after = |most: usize, choice: ToolChoice, constraint: Option<Spec>| {
            asked.set(0);
            let tools = vec![Tool::of_json(&tool).unwrap()];
            let used = ToolUse { tools, choice, parallel: true, format: None };
            let interrupted = || {
                asked.set(asked.get() + 1);
                asked.get() > most
            };
            enforced(used, &text, constraint, &interrupted).map(|enforced| enforced.spec.is_some())
        };
        let document = || Some(Spec::JsonSchema(schema.clone()));
        for (choice, constraint) in [(ToolChoice::Required, None), (ToolChoice::Auto, document())] {
            assert!(given_up_after(usize::MAX, choice.clone(), constraint.clone()).unwrap());
            let all = asked.get();
            assert!(all > 300, "{all} questions");
            for most in [0, all / 2, all - 1] {
                let ended = given_up_after(most, choice.clone(), constraint.clone());
                assert!(matches!(ended, Err(Error::Request(RequestError::Interrupted))), "{most}: {ended:?}");
                assert!(asked.get() <= most + 3, "{most}: asked {} times", asked.get());
            }
        }
    }
}
