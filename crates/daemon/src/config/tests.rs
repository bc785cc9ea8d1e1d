//! Tests of configurations, valid and invalid ones, and of the error messages.

use std::io::Write as _;

use hanzo_engine_media::PixelLimits;

use super::*;

fn file(suffix: &str, text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn flags_are_over_the_environment_over_the_file_over_the_defaults() {
    figment::Jail::expect_with(|jail| {
        for (name, text) in [
            ("a.toml", "[server]\ngrpc_port = 1\nadmin_port = 2\ndrain_s = 3\n[[models]]\nsource = \"m\"\n"),
            ("a.yaml", "server:\n  grpc_port: 1\n  admin_port: 2\n  drain_s: 3\nmodels:\n  - source: m\n"),
        ] {
            jail.create_file(name, text)?;
            jail.set_env("HANZO_ENGINE_SERVER_ADMIN_PORT", 20);
            jail.set_env("HANZO_ENGINE_SERVER_GRPC_PORT", 10);
            jail.set_env("HANZO_ENGINE_SERVER_PORT", 8080);
            jail.set_env("HANZO_MODELS_DIR", "/models");
            let flags = Figment::from(Serialized::default("server.grpc_port", 100));
            let config = Config::load(Some(Path::new(name)), flags).unwrap();
            assert_eq!(
                (config.server.grpc_port, config.server.admin_port, config.server.drain_s),
                (100, 20, 3)
            );
            assert_eq!(config.store.dir.as_deref(), Some(Path::new("/models")));
            assert_eq!(config.models[0].source, "m");
            assert_eq!(config.engine, EngineSection::default());
        }
        jail.set_env("HANZO_MODELS_DIR", "");
        assert_eq!(Config::load(None, Figment::new()).unwrap().store.dir, None);
        Ok(())
    });
}

#[test]
fn an_unknown_key_is_named_with_its_file_and_with_what_was_meant() {
    for (suffix, text, key) in [
        (".toml", "[server]\ngrpc_prot = 1\n", "did you mean grpc_port?"),
        (".toml", "grpc_port = 1\n", "did you mean server.grpc_port?"),
        (".toml", "[[models]]\nsorce = \"m\"\n", "did you mean source?"),
        (".toml", "[server]\nprot = 1\n", "server.prot"),
        (".yaml", "servers: {}\n", "servers"),
        (".toml", "[[models]]\nsource = \"a\"\nfoo = 1\n", "foo"),
    ] {
        let file = file(suffix, text);
        let error = Config::load(Some(file.path()), Figment::new()).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
        assert!(error.contains(key) && error.contains("unknown"), "{error}");
        for doubled in ["grpc_prot.grpc_prot", "grpc_port.grpc_port", "sorce.sorce", "prot.prot", "foo.foo"] {
            assert!(!error.contains(doubled), "{error}");
        }
    }
    let error = Config::load(None, Serialized::default("engine.speed", 1)).unwrap_err().to_string();
    assert!(error.starts_with("flags: engine.speed"), "{error}");
}

#[test]
fn a_misspelt_variable_of_our_own_sections_is_an_error() {
    figment::Jail::expect_with(|jail| {
        jail.set_env("HANZO_ENGINE_SERVER_GRPC_PROT", 1);
        let error = Config::load(None, Figment::new()).unwrap_err().to_string();
        assert!(error.starts_with("environment: server.grpc_prot: "), "{error}");
        Ok(())
    });
}

#[test]
fn values_out_of_range_and_of_the_wrong_type_are_named() {
    // Keeps other tests from changing the environment meanwhile.
    figment::Jail::expect_with(|_| {
        for (key, value) in [
            ("server.host", serde_json::json!("example.com")),
            ("server.host", serde_json::json!("0.0.0.0")),
            ("server.api_key", serde_json::json!("short")),
            ("server.api_key", serde_json::json!(12_345_678)),
            ("server.grpc_port", serde_json::json!("many")),
            ("engine.queue_requests_max", serde_json::json!(0)),
            ("engine.sequences_max", serde_json::json!(1000)),
            ("engine.threads", serde_json::json!(0)),
            ("engine.kv_type", serde_json::json!("q4_0")),
            ("engine.kv_type", serde_json::json!(8)),
            ("server.drain_s", serde_json::json!(u64::MAX)),
            ("models", serde_json::json!([{"source": "m", "context_tokens_max": 0}])),
            ("engine.fixed_memory_bytes", serde_json::json!(limits::FIXED_MEMORY_BESIDE)),
            ("engine.isolation", serde_json::json!("container")),
            ("engine.worker_silence_ms", serde_json::json!(10)),
            ("engine.picture_pixels", serde_json::json!(100)),
            ("engine.picture_pixels_max", serde_json::json!(60_000_000)),
            ("models", serde_json::json!([{"source": "m", "picture_pixels": 100}])),
        ] {
            let error = Config::load(None, Serialized::default(key, value)).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
        assert!(Config::load(Some(Path::new("/no/such/file.toml")), Figment::new()).is_err());
        Ok(())
    });
}

#[test]
fn a_kv_type_goes_by_its_name() {
    figment::Jail::expect_with(|jail| {
        assert_eq!(Config::load(None, Figment::new()).unwrap().engine.kv_type, KvType::F16);
        jail.set_env("HANZO_ENGINE_ENGINE_KV_TYPE", "q8_0");
        assert_eq!(Config::load(None, Figment::new()).unwrap().engine.kv_type, KvType::Q8_0);
        jail.set_env("HANZO_ENGINE_ENGINE_KV_TYPE", "q4_0");
        let error = Config::load(None, Figment::new()).unwrap_err().to_string();
        assert!(error.contains("q4_0") && error.contains("f16, q8_0"), "{error}");
        Ok(())
    });
}

#[test]
fn bounds_of_pictures_are_the_models_or_the_engines() {
    figment::Jail::expect_with(|jail| {
        let unset = Config::load(None, Figment::new()).unwrap().engine;
        assert_eq!(unset.picture_limits(None), PixelLimits::default());
        jail.set_env("HANZO_ENGINE_ENGINE_PICTURE_PIXELS", "1000000");
        let flag = Serialized::default("engine.picture_pixels_max", 2_000_000);
        let engine = Config::load(None, flag).unwrap().engine;
        assert_eq!(engine.picture_limits(None), PixelLimits { usual: Some(1_000_000), most: 2_000_000 });
        assert_eq!(
            engine.picture_limits(Some(500_000)),
            PixelLimits { usual: Some(500_000), most: 2_000_000 }
        );
        Ok(())
    });
}

#[test]
fn memory_that_is_fixed_is_that_of_one_process() {
    figment::Jail::expect_with(|jail| {
        let by_default = |config: &Config| {
            let mut engine = config.engine.clone();
            engine.isolate_by_default();
            engine.isolation
        };
        let unset = Config::load(None, Figment::new()).unwrap();
        assert_eq!((unset.engine.isolation, by_default(&unset)), (None, Some(Isolation::STRONGEST)));
        jail.set_env("HANZO_ENGINE_ENGINE_ISOLATION", "thread");
        assert_eq!(by_default(&Config::load(None, Figment::new()).unwrap()), Some(Isolation::Thread));
        jail.set_env("HANZO_ENGINE_ENGINE_FIXED_MEMORY_BYTES", "1073741824");
        jail.set_env("HANZO_ENGINE_ENGINE_ISOLATION", "process");
        let error = Config::load(None, Figment::new()).unwrap_err().to_string();
        assert!(error.contains("engine.isolation") && error.contains("thread"), "{error}");
        Ok(())
    });
}

#[test]
fn fixed_memory_is_the_budget_of_models_and_of_all_else() {
    figment::Jail::expect_with(|jail| {
        jail.set_env("HANZO_ENGINE_ENGINE_FIXED_MEMORY_BYTES", "1073741824");
        let config = Config::load(None, Figment::new()).unwrap();
        assert_eq!(config.engine.models_bytes(), Some((1 << 30) - limits::FIXED_MEMORY_BESIDE));
        jail.set_env("HANZO_ENGINE_ENGINE_MEMORY_BUDGET_BYTES", "1073741824");
        let error = Config::load(None, Figment::new()).unwrap_err().to_string();
        assert!(error.contains("fixed_memory_bytes") && error.contains("memory_budget_bytes"), "{error}");
        Ok(())
    });
}

#[test]
fn models_may_come_on_demand_and_stay_for_a_time() {
    figment::Jail::expect_with(|jail| {
        let config = Config::load(None, Figment::new()).unwrap();
        assert_eq!(config.engine.on_demand, OnDemand::Always);
        assert_eq!(config.engine.keep_alive, "5m".parse().unwrap());
        let text =
            "[engine]\nkeep_alive = 90\n[[models]]\nsource = \"m\"\nkeep_alive = \"1h\"\nat_start = false\n";
        jail.create_file("a.toml", text)?;
        let config = Config::load(Some(Path::new("a.toml")), Figment::new()).unwrap();
        assert_eq!(config.engine.keep_alive, "90s".parse().unwrap());
        let model = &config.models[0];
        assert_eq!((model.keep_alive, model.at_start), (Some("60m".parse().unwrap()), false));
        jail.set_env("HANZO_ENGINE_ENGINE_KEEP_ALIVE", "-1");
        jail.set_env("HANZO_ENGINE_ENGINE_ON_DEMAND", "never");
        let refused = Config::load(Some(Path::new("a.toml")), Figment::new()).unwrap_err().to_string();
        assert!(refused.contains("at_start"), "{refused}");
        let config = Config::load(None, Figment::new()).unwrap();
        assert_eq!((config.engine.keep_alive, config.engine.on_demand), (KeepAlive::Pinned, OnDemand::Never));
        for (key, value) in [("engine.keep_alive", "soon"), ("engine.on_demand", "often")] {
            let error = Config::load(None, Serialized::default(key, value)).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(value), "{error}");
        }
        Ok(())
    });
}
