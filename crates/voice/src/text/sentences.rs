//! A text's sentences.

/// Words whose point ends no sentence.
const SHORT: [&str; 15] =
    ["mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "e.g", "i.e", "no", "gen", "col", "lt"];

/// The sentences of a text, in order, without white space around them. A blank line ends one too.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in text.split("\n\n") {
        let mut current = String::new();
        for word in paragraph.split_whitespace() {
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
            if ends(word) {
                found.push(std::mem::take(&mut current));
            }
        }
        if !current.is_empty() {
            found.push(current);
        }
    }
    found
}

fn ends(word: &str) -> bool {
    let bare = word.trim_end_matches(['"', '\'', ')', ']', '”', '’', '»']);
    if bare.ends_with(['!', '?', '…', '。', '！', '？']) {
        return true;
    }
    let Some(stem) = bare.strip_suffix('.') else { return false };
    let stem = stem.trim_start_matches(['(', '"', '“', '\'']).to_lowercase();
    // A single letter is an initial.
    !SHORT.contains(&stem.as_str()) && stem.chars().count() != 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_inside_of_sentences_end_none() {
        let text = "Dr. A. Smith said \"No.\" He left at 3.5, e.g. early! (Really?)\n\nA title\n\nThe end";
        assert_eq!(
            sentences(text),
            ["Dr. A. Smith said \"No.\" He left at 3.5, e.g. early!", "(Really?)", "A title", "The end"]
        );
        assert!(sentences(" \n\n ").is_empty());
    }
}
