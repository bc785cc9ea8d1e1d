//! Engines that hang or refuse connections while others are up.

use super::*;

#[tokio::test]
async fn requests_on_an_engine_that_hangs_go_to_another_or_end() {
    // The first that is asked "begun" begins to answer; the first that is asked anything else says nothing.
    let asked = Arc::new(AtomicUsize::new(0));
    let script = script(move |request| match asked.fetch_add(1, SeqCst) {
        0 => Ok(vec![Step::Hang]),
        1 => halves(request),
        _ => hello(request),
    });
    let fleet = Fleet::start(2, script).await;
    let http = fleet.http;
    let silent = tokio::spawn(async move { chat(http, "the same question").await });
    let on = loop {
        if let Some(on) = fleet.seen().iter().position(|seen| *seen > 0) {
            break on;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let mut begun = stream(http, "the same question").await;
    begun.read_until("one ").await;
    assert_eq!(fleet.seen()[on], 2, "one question has one engine");
    let _asleep = fleet.engines[on].hang();

    // One engine that hangs, behind a gateway that has no other.
    let alone = tempfile::tempdir().unwrap();
    let alone = Engine::start(alone.path().join("alone.sock"), crate::script(halves));
    let uri = format!("unix:{}", alone.path.display());
    let one = gateway(Config { upstreams: vec![uri], ..Config::default() }, Arc::new(SystemResolver)).await;
    let mut of_one = stream(one, "hello").await;
    of_one.read_until("one ").await;
    let _asleep_too = alone.hang();
    let late = chat(one, "hello");

    let waited = async { tokio::join!(silent, begun.rest(), of_one.rest(), late) };
    let (silent, begun, of_one, late) =
        tokio::time::timeout(2 * PATIENCE, waited).await.expect("they wait for ever");
    let silent = silent.unwrap();
    assert_eq!(silent.status, 200, "{}", silent.text);
    assert_eq!(silent.json()["choices"][0]["message"]["content"], "Hello");
    for broken in [begun, of_one] {
        assert!(broken.text.contains("it hangs") && !broken.text.contains("[DONE]"), "{}", broken.text);
    }
    assert_eq!(late.status, 503, "{}", late.text);
}

#[tokio::test]
async fn an_engine_that_refuses_connections_is_passed_over() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    // One that takes connections and ends them.
    let ending = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ends = format!("http://{}", ending.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((connection, _)) = ending.accept().await {
            drop(connection);
        }
    });
    let sound = Fake::start(script(hello)).await;
    let upstreams = vec![refusing, ends, sound.uri()];
    // From the first request on, when nothing is known of any.
    for _ in 0..8 {
        let config = Config { upstreams: upstreams.clone(), ..Config::default() };
        let http = gateway(config, Arc::new(SystemResolver)).await;
        for i in 0..12 {
            let answer = chat(http, &format!("question {i}")).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            let tokens = post(http, "/tokenize", &json!({"prompt": format!("{i}")})).await;
            assert_eq!(tokens.status, 200, "{}", tokens.text);
            let models = get(http, "/v1/models").await;
            assert_eq!(models.status, 200, "{}", models.text);
        }
    }
}
