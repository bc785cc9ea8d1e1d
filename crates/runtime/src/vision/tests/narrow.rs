//! LLaVA-NeXT's pictures so narrow that no column, or no line, of their canvas is left (make_narrow.py). For tall
//! ones the line ends stay, as in the library.

use super::*;

#[test]
fn narrow_pictures_are_the_librarys_rows_and_get_answers() {
    let model = open("llava_next");
    let bytes = fs::read(folder("llava_next").join("narrow.safetensors")).unwrap();
    let known = crate::safetensors::parse("narrow", &bytes.into()).unwrap();
    let mut engine = engine(&model, 64);
    let talk = talks("llava_next").remove(0);
    for (id, sides) in [[3, 700], [700, 3], [1, 1500], [1500, 1]].into_iter().enumerate() {
        let name = format!("{}x{}", sides[0], sides[1]);
        let known = known.iter().find(|tensor| tensor.name == name).unwrap().to_f32().unwrap();
        let talk = Talk { pictures: vec![texture(sides)], ..talk.clone() };
        let (_, spans) = prompt(&model.1, &talk);
        let sight = model.1.sight.as_ref().unwrap();
        assert!(spans.iter().all(|span| sight.fits(span)), "{name}: {spans:?}");
        let rows = rows_of(AnyBackend::new(ReferenceBackend::new()), &model.0, &spans, ALL);
        assert_eq!(rows.len(), known.len(), "{name}");
        let range = known.iter().fold(0.0f32, |a, &b| a.max(b.abs()));
        let differs = rows.iter().zip(&known).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(differs <= ROWS_TOLERANCE * range, "{name}: {differs} of {range}");
        engine.submit(job(id as u64, &model.1, &talk));
        assert!(!finish(&mut engine)[&JobId(id as u64)].tokens.is_empty(), "{name}");
    }
}
