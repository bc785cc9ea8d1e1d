//! An HTTP/1.1 client: one connection for each request.

use std::net::SocketAddr;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinHandle};

use crate::PATIENCE;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("not JSON: {e}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The data of each event of a stream; JSON, or a string for `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let event = |frame: &str| {
            let data = frame.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {frame}"));
            serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))
        };
        assert!(self.text.ends_with("\n\n"), "{:?}", self.text);
        self.text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':')).map(event).collect()
    }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, Request::get(path).body(Full::default()).unwrap()).await
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    post_bytes(address, path, body.to_string()).await
}

pub(crate) async fn post_bytes(address: SocketAddr, path: &str, body: impl Into<Bytes>) -> Answer {
    send(address, json_request(path, body)).await
}

pub(crate) fn json_request(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path).header("content-type", "application/json").body(Full::new(body.into())).unwrap()
}

pub(crate) async fn send<B>(address: SocketAddr, request: Request<B>) -> Answer
where
    B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    Live::open(address, request).await.rest().await
}

/// An answer whose body is still coming.
pub(crate) struct Live {
    response: Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Live {
    /// Sends a request, and waits for the answer's headers.
    pub(crate) async fn open<B>(address: SocketAddr, request: Request<B>) -> Live
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        Live::tried(address, request).await.expect("an answer begins")
    }

    /// As [`Live::open`]; one whose connection ends before its head has come is an error.
    pub(crate) async fn tried<B>(address: SocketAddr, request: Request<B>) -> hyper::Result<Live>
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let open = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let body_erased = request.map(Body::new);
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            let connection = tokio::spawn(async move {
                let _ = connection.await;
            });
            let mut request = body_erased;
            request.headers_mut().insert("host", "localhost".parse().unwrap());
            Ok(Live { response: sender.send_request(request).await?, connection })
        };
        tokio::time::timeout(PATIENCE, open).await.expect("no answer")
    }

    /// Opens a streamed chat.
    pub(crate) async fn chat(address: SocketAddr) -> Live {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
        Live::open(address, json_request("/v1/chat/completions", body.to_string())).await
    }

    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Reads until `text` has come.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        let read = async {
            let mut read = String::new();
            while !read.contains(text) {
                let frame =
                    self.response.frame().await.unwrap_or_else(|| panic!("ended with {read}")).unwrap();
                read.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            }
            read
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the text did not come")
    }

    /// Reads until the connection fails (true) or the answer ends (false).
    pub(crate) async fn breaks_off(&mut self) -> bool {
        let read = async {
            while let Some(frame) = self.response.frame().await {
                if frame.is_err() {
                    return true;
                }
            }
            false
        };
        tokio::time::timeout(PATIENCE, read).await.expect("no end")
    }

    /// Reads to the end.
    pub(crate) async fn rest(self) -> Answer {
        let (parts, body) = self.response.into_parts();
        let bytes = tokio::time::timeout(PATIENCE, body.collect()).await.expect("no end").unwrap().to_bytes();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    /// Closes the connection in the middle of the answer.
    pub(crate) fn leave(self) {
        self.connection.abort();
    }
}
