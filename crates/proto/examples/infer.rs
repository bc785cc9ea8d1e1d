//! Example: generates text from an engine over gRPC, as docs/guides/hanzo-node.md shows it.

use hanzo_engine_proto::v1::{
    InferRequest, StopConditions, engine_client::EngineClient, infer_event::Event, infer_request::Prompt,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("http://127.0.0.1:36901".into());
    let mut engine = EngineClient::connect(address).await?;
    let mut request = tonic::Request::new(InferRequest {
        model: "hanzo-demo".into(),
        prompt: Some(Prompt::Text("Once upon a time".into())),
        stop: Some(StopConditions { max_tokens: Some(32), ..Default::default() }),
        client: "node-7".into(), // requests of one client share its place in the line
        ..Default::default()
    });
    if let Ok(key) = std::env::var("HANZO_ENGINE_API_KEY") {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse()?);
    }
    let mut events = engine.infer(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Delta(delta)) => print!("{}", delta.text),
            Some(Event::Finished(finished)) => println!("\n{:?}", finished.usage),
            _ => {}
        }
    }
    Ok(())
}
