//! Tests against the pixels of Pillow and transformers (`testdata/make.py`), and with hostile input.

use std::cell::Cell;

use base64::Engine;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::*;

fn golden(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../testdata/golden.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn size(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

fn digest(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Equal to `texture` in `testdata/make.py`.
fn texture(width: u32, height: u32) -> Picture {
    let value = |x: u64, y: u64, c: u64| {
        let smooth = (x * (3 + c) + y * (5 - c)) % 256;
        let edge = if (x / 7 + y / 5 + c).is_multiple_of(2) { 60 } else { 0 };
        let noise = (x * 7919 + y * 104_729 + c * 1_299_709) % 31;
        (smooth / 2 + edge + noise).min(255) as u8
    };
    let rows = 0..u64::from(height);
    let rgb = rows
        .flat_map(|y| (0..u64::from(width)).flat_map(move |x| (0..3).map(move |c| value(x, y, c))))
        .collect();
    Picture { width, height, rgb }
}

#[test]
fn files_of_every_kind_are_what_pillow_reads() {
    let files = golden("files");
    assert!(files.len() > 25);
    for of in files {
        let name = of["name"].as_str().unwrap();
        let picture =
            decode(&file(name), &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((picture.width, picture.height), (size(&of["width"]), size(&of["height"])), "{name}");
        let known = file(&format!("{name}.rgb"));
        // The decoder of lossy WebP rounds differently.
        let most = if name == "lossy.webp" { 4 } else { 0 };
        let differs = picture.rgb.iter().zip(&known).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert_eq!(picture.rgb.len(), known.len(), "{name}");
        assert!(differs <= most, "{name}: differs by {differs}");
    }
}

/// Interrupts the decoding of every file at each check.
#[test]
fn a_picture_that_nobody_waits_for_is_given_up_at_once() {
    for of in golden("files") {
        let name = of["name"].as_str().unwrap();
        // A rotated picture has as many rows as it shows columns.
        let rows = size(&of["width"]).min(size(&of["height"]));
        let (bytes, asked) = (file(name), Cell::new(0));
        let given_up_after = |most: u64| {
            asked.set(0);
            let interrupted = || {
                asked.set(asked.get() + 1);
                asked.get() > most
            };
            decode_until(&bytes, &Limits::default(), &interrupted).map(drop)
        };
        assert_eq!(given_up_after(u64::MAX), Ok(()), "{name}");
        let all = asked.get();
        // Checks happen at a JPEG's blocks and rows, and at the portions of other files.
        let least = if name.ends_with(".jpg") { u64::from(rows) } else { 2 + bytes.len() as u64 / 4096 };
        assert!(all >= least, "{name}: {all} questions, at least {least}");
        for most in 0..all {
            assert_eq!(given_up_after(most), Err(PictureError::Interrupted), "{name}, {most} of {all}");
            assert!(asked.get() <= most + 2, "{name}, {most}: asked {} times", asked.get());
        }
    }
}

#[test]
fn sizes_are_pillows_to_the_byte() {
    for of in golden("resizes") {
        let filter = match of["filter"].as_str().unwrap() {
            "Box" => Filter::Box,
            "Bilinear" => Filter::Bilinear,
            "Hamming" => Filter::Hamming,
            "Bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let picture = texture(size(&of["from"][0]), size(&of["from"][1]));
        let resized = resize(&picture, size(&of["to"][0]), size(&of["to"][1]), filter);
        assert_eq!(digest(&resized.rgb), of["digest"].as_str().unwrap(), "{of}");
    }
}

#[test]
fn processors_make_what_transformers_do() {
    let cases = golden("processors");
    assert!(cases.len() > 100);
    for of in cases {
        let config = of["config"].as_object().unwrap();
        let processor = Processor::from_config(config).unwrap();
        let detail = match of["detail"].as_str().unwrap() {
            "Own" => Detail::Own,
            "Low" => Detail::Low,
            _ => Detail::High,
        };
        let picture = texture(size(&of["width"]), size(&of["height"]));
        let [pixels_min, pixels_max] = ["pixels_min", "pixels_max"].map(|key| of[key].as_u64());
        let prepared = processor.prepare(picture, PictureOptions { detail, pixels_min, pixels_max }).unwrap();
        assert_eq!((prepared.rows, prepared.cols), (size(&of["rows"]), size(&of["cols"])), "{of}");
        assert_eq!(prepared.frames.len(), of["frames"][0].as_u64().unwrap() as usize, "{of}");
        assert!(detail == Detail::High || prepared.frames.len() <= processor.frames_max(), "{of}");
        let mut all = Vec::new();
        for (index, frame) in prepared.frames.iter().enumerate() {
            let sides = match (of["sides"].as_array(), of["canvas"].as_array().filter(|_| index > 0)) {
                (Some(sides), _) => [&sides[index][0], &sides[index][1]],
                (None, Some(sides)) => [&sides[0], &sides[1]],
                (None, None) => [&of["frames"][1], &of["frames"][2]],
            };
            assert_eq!([frame.height, frame.width], sides.map(size), "{of}");
            all.extend_from_slice(&frame.rgb);
        }
        assert_eq!(digest(&all), of["digest"].as_str().unwrap(), "{of}");
        let table = processor.scale().table();
        for (color, numbers) in of["numbers"].as_array().unwrap().iter().enumerate() {
            for (column, known) in numbers.as_array().unwrap().iter().enumerate() {
                let number = table[color][usize::from(all[column * 3 + color])];
                assert!(
                    (f64::from(number) - known.as_f64().unwrap()).abs() < 1e-6,
                    "{number} for {known} in {of}"
                );
            }
        }
    }
}

#[test]
fn settings_that_would_be_lost_are_refused_by_name() {
    let with = |key: &str, value: Value| {
        let mut config = Map::new();
        config.insert("image_processor_type".into(), "SmolVLMImageProcessor".into());
        config.insert(key.into(), value);
        Processor::from_config(&config)
    };
    assert!(with("do_pad", json!(true)).is_ok());
    for (key, value) in [
        ("image_processor_type", json!("BlipImageProcessor")),
        ("crop_size", json!(224)),
        ("resample", json!(0)),
        ("size", json!({ "height": 3, "width": 3 })),
        ("max_image_size", json!({ "longest_edge": 0 })),
        ("do_resize", json!("yes")),
        ("rescale_factor", json!("1/255")),
        ("image_mean", json!([0.5])),
        ("image_std", json!([0.5, 0, 0.5])),
    ] {
        assert_eq!(with(key, value).unwrap_err().key, key);
    }
}

#[test]
fn settings_of_sizes_that_vary_are_held_to_what_is_known() {
    let with = |key: &str, value: Value| {
        let mut config = Map::new();
        config.insert("image_processor_type".into(), "Qwen2VLImageProcessor".into());
        config.insert(key.into(), value);
        Processor::from_config(&config)
    };
    for (key, value) in [
        ("crop_size", json!(224)),
        ("max_image_size", json!({ "longest_edge": 64 })),
        ("patch_size", json!(0)),
        ("merge_size", json!("2")),
        ("temporal_patch_size", json!(3)),
        ("min_pixels", json!(-1)),
        ("max_pixels", json!("many")),
    ] {
        assert_eq!(with(key, value).unwrap_err().key, key);
    }
    let processor = with("max_pixels", json!(100_000)).unwrap();
    let options = |pixels_min, pixels_max| {
        processor.prepare(
            texture(300, 200),
            PictureOptions { pixels_min, pixels_max, ..PictureOptions::default() },
        )
    };
    let sides = |prepared: PreparedPicture| (prepared.frames[0].width, prepared.frames[0].height);
    assert_eq!(sides(options(None, None).unwrap()), (308, 196));
    assert_eq!(sides(options(None, Some(784)).unwrap()), (28, 28));
    assert_eq!(sides(options(Some(200_000), Some(300_000)).unwrap()), (560, 392), "{processor:?}");
    assert!(matches!(options(Some(200_000), None), Err(PictureError::Bounds { most: 100_000, .. })));
    assert!(matches!(options(None, Some(783)), Err(PictureError::Bounds { square: 784, .. })));
    let low = processor
        .prepare(texture(2000, 1000), PictureOptions { detail: Detail::Low, ..PictureOptions::default() });
    assert_eq!(sides(low.unwrap()), (420, 196), "its own bound is the lower");
    let long = processor.prepare(texture(1, 201), PictureOptions::default());
    assert!(matches!(long, Err(PictureError::Shape { .. })));
    // A processor with fixed sizes has no bounds.
    let config = json!({ "image_processor_type": "SmolVLMImageProcessor" });
    let tiles = Processor::from_config(config.as_object().unwrap()).unwrap();
    let bounded =
        tiles.prepare(texture(9, 9), PictureOptions { pixels_max: Some(784), ..PictureOptions::default() });
    assert_eq!(bounded, Err(PictureError::NoBounds));
}

#[test]
fn what_is_too_large_is_refused_by_its_header() {
    let limits = Limits::default();
    // A header that promises 65,535 x 65,535 pixels, without data.
    let mut png = file("rgb.png");
    png[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let crc = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    let mut jpeg = file("rgb.jpg");
    let frame = jpeg.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    let mut gif = file("still.gif");
    gif[6..10].copy_from_slice(&[0xff; 4]);
    for bytes in [png, jpeg, gif] {
        let error = decode(&bytes, &limits).unwrap_err();
        assert!(matches!(error, PictureError::TooManyPixels { max: 50_000_000, .. }), "{error:?}");
    }
    let picture = file("rgb.png");
    let small = Limits { bytes_max: picture.len() - 1, ..limits };
    assert!(matches!(decode(&picture, &small), Err(PictureError::TooManyBytes { .. })));
    let narrow = Limits { pixels_max: 23 * 17 - 1, ..limits };
    assert!(matches!(decode(&picture, &narrow), Err(PictureError::TooManyPixels { .. })));
    assert!(decode(&picture, &Limits { pixels_max: 23 * 17, bytes_max: picture.len() }).is_ok());
    assert_eq!(decode(&[], &limits), Err(PictureError::Empty));
    assert_eq!(decode(b"BM and more of what is no picture", &limits), Err(PictureError::UnknownFormat));
}

#[test]
fn a_line_is_refused_however_few_pixels_it_has() {
    let mut png = file("rgb.png");
    for (width, height) in [(65_536_u32, 1_u32), (1, 50_000_000)] {
        png[16..20].copy_from_slice(&width.to_be_bytes());
        png[20..24].copy_from_slice(&height.to_be_bytes());
        let crc = crc32(&png[12..29]);
        png[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = decode(&png, &Limits::default()).unwrap_err();
        assert_eq!(error, PictureError::TooLong { width, height, max: 65_535 });
    }
}

/// Preprocessing the longest possible pictures takes at most a second, and no more memory than a large picture
/// does.
#[test]
fn the_longest_lines_are_made_to_frames_or_refused() {
    let of = |config: Value| Processor::from_config(config.as_object().unwrap()).unwrap();
    let padded = of(json!({ "image_processor_type": "LlavaImageProcessor", "do_pad": true }));
    let grids = of(json!({
        "image_processor_type": "LlavaNextImageProcessor",
        "size": { "shortest_edge": 336 },
        "crop_size": { "height": 336, "width": 336 },
    }));
    let all = ["Idefics2", "Idefics3", "Gemma3", "CLIP", "Siglip", "Llava", "Qwen2VL", "Pixtral"];
    let all = all.map(|name| of(json!({ "image_processor_type": format!("{name}ImageProcessor") })));
    for processor in all.iter().chain([&padded, &grids]) {
        for (width, height) in [(65_535, 1), (1, 65_535)] {
            let picture = Picture { width, height, rgb: vec![7; 3 * 65_535] };
            match processor.prepare(picture, PictureOptions::default()) {
                Ok(prepared) => assert!(!prepared.frames.is_empty()),
                Err(PictureError::Shape { .. }) => {}
                Err(error) => panic!("{processor:?}: {error}"),
            }
        }
    }
}

#[test]
fn what_a_request_wants_made_of_a_picture_is_bounded() {
    let config = json!({ "image_processor_type": "Qwen2VLImageProcessor" });
    let qwen = Processor::from_config(config.as_object().unwrap()).unwrap();
    let options = PictureOptions {
        pixels_min: Some(4_000_000_000),
        pixels_max: Some(4_000_000_000),
        ..PictureOptions::default()
    };
    let error = qwen.prepare(texture(100, 100), options).unwrap_err();
    assert!(matches!(error, PictureError::Larger { max: 50_000_000, .. }), "{error:?}");
}

/// CRC of PNG (ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

#[test]
fn data_uris_are_read_as_clients_write_them() {
    let bytes = file("rgb.png");
    let data = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let lines = data.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect::<Vec<_>>();
    for uri in [
        format!("data:image/png;base64,{data}"),
        format!("DATA:image/jpeg;charset=x;BASE64,{data}"),
        format!("data:;base64,{}", data.trim_end_matches('=')),
        format!("data:image/png;base64,{}", data.replace('+', "-").replace('/', "_")),
        format!("data:image/png;base64,{}", lines.join("\r\n")),
    ] {
        assert_eq!(from_data_uri(&uri, "image/png", bytes.len()).unwrap(), bytes);
        assert!(matches!(
            from_data_uri(&uri, "image/png", bytes.len() - 1),
            Err(PictureError::TooManyBytes { .. })
        ));
    }
    let cut = &data[..data.len() / 2 - 1];
    for (uri, says) in [
        (String::new(), "nothing is fetched"),
        ("https://example.com/cat.png".to_owned(), "nothing is fetched"),
        ("file:///etc/passwd".to_owned(), "nothing is fetched"),
        ("data:image/png;base64".to_owned(), "comma"),
        (format!("data:image/png,{data}"), "base64"),
        (format!("data:image/png;base64,{cut}*{cut}"), "not base64"),
        ("data:image/png;base64,A".to_owned(), "not base64"),
        ("data:image/png;base64,".to_owned(), "is empty"),
        ("dät".to_owned(), "nothing is fetched"),
    ] {
        let error = from_data_uri(&uri, "image/png", 1 << 20).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Photographs and screenshots get the sizes of `smart_resize` in transformers 5.24, with `max_pixels` set to
/// the tower's room.
#[test]
fn large_pictures_are_scaled_to_what_a_tower_takes() {
    let qwen = |config: Value| Processor::from_config(config.as_object().unwrap()).unwrap();
    let second = qwen(json!({ "image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 12_845_056 }));
    let third = qwen(json!({
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": { "longest_edge": 16_777_216, "shortest_edge": 65_536 },
        "patch_size": 16,
    }));
    for (processor, patch, photo, screenshot) in
        [(second, 14, [1540, 2044], [1344, 2380]), (third, 16, [1760, 2336], [1536, 2720])]
    {
        for ([height, width], sides) in [([3024, 4032], photo), ([2160, 3840], screenshot)] {
            let picture = Picture { width, height, rgb: vec![90; width as usize * height as usize * 3] };
            let limits = 16_384 * patch * patch;
            let limits = PixelLimits { usual: None, most: limits };
            let prepared = processor.prepare_within(picture, PictureOptions::default(), limits).unwrap();
            assert_eq!([prepared.frames[0].height, prepared.frames[0].width], sides);
        }
    }
}

/// The operator's default and limit, combined with a request's bounds. Sides are those of `smart_resize` in
/// transformers 5.24 for a picture of 4000 x 3000 pixels with those bounds.
#[test]
fn an_operators_default_holds_where_the_request_says_nothing() {
    let settings = json!({ "image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 12_845_056 });
    let qwen = Processor::from_config(settings.as_object().unwrap()).unwrap();
    let settings =
        json!({ "image_processor_type": "PixtralImageProcessor", "size": { "longest_edge": 1540 } });
    let pixtral = Processor::from_config(settings.as_object().unwrap()).unwrap();
    let picture = || Picture { width: 4000, height: 3000, rgb: vec![90; 36_000_000] };
    let options = |detail, pixels_min, pixels_max| PictureOptions { detail, pixels_min, pixels_max };
    let limits = |usual: u64, most: u64| PixelLimits { usual: (usual > 0).then_some(usual), most };
    let (own, low, high) = (Detail::Own, Detail::Low, Detail::High);
    for (processor, options, limits, sides) in [
        (&qwen, options(own, None, None), limits(0, u64::MAX), [2996, 4004]),
        (&qwen, options(own, None, None), limits(1_000_000, u64::MAX), [840, 1148]),
        (&qwen, options(low, None, None), limits(1_000_000, u64::MAX), [420, 588]),
        (&qwen, options(low, None, None), limits(100_000, u64::MAX), [252, 364]),
        (&qwen, options(high, None, None), limits(1_000_000, u64::MAX), [2996, 4004]),
        (&qwen, options(own, None, Some(2_000_000)), limits(1_000_000, u64::MAX), [1204, 1624]),
        (&qwen, options(own, Some(2_000_000), None), limits(1_000_000, u64::MAX), [1204, 1624]),
        (&qwen, options(own, None, Some(9_000_000)), limits(1_000_000, 1_500_000), [1036, 1400]),
        (&qwen, options(high, None, None), limits(0, 1_500_000), [1036, 1400]),
        // Pixtral's longest side is 1540, or as long as the pixel bound allows.
        (&pixtral, options(own, None, None), limits(0, u64::MAX), [1168, 1552]),
        (&pixtral, options(own, None, None), limits(480_000, u64::MAX), [608, 800]),
        (&pixtral, options(high, None, None), limits(480_000, u64::MAX), [1168, 1552]),
        (&pixtral, options(high, None, None), limits(480_000, 480_000), [608, 800]),
    ] {
        let prepared = processor.prepare_within(picture(), options, limits).unwrap();
        assert_eq!([prepared.frames[0].height, prepared.frames[0].width], sides, "{options:?} {limits:?}");
    }
    let beyond = qwen.prepare_within(picture(), options(own, Some(2_000_000), None), limits(0, 1_500_000));
    assert!(matches!(beyond, Err(PictureError::Bounds { most: 1_500_000, .. })), "{beyond:?}");
}

/// Reference values of `LlavaNextImageProcessorPil` in transformers 5.24.
#[test]
fn narrow_pictures_of_llava_next_are_transformers() {
    let config = json!({
        "image_processor_type": "LlavaNextImageProcessor",
        "size": { "shortest_edge": 32 },
        "crop_size": { "height": 32, "width": 32 },
        "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]],
    });
    let processor = Processor::from_config(config.as_object().unwrap()).unwrap();
    for (width, height, known) in [
        (3, 700, "19dc811fc0b6fa1ad12a86c4da6aa94654aca2c8ff720c4c8a33c63ae375d76b"),
        (700, 3, "0e34834380d5be907b75fe404371dcd2c65fd7fe61d130385923d5e1431c39da"),
    ] {
        let prepared = processor.prepare(texture(width, height), PictureOptions::default()).unwrap();
        let all: Vec<u8> = prepared.frames.into_iter().flat_map(|frame| frame.rgb).collect();
        assert_eq!(digest(&all), known, "{width} x {height}");
    }
}
