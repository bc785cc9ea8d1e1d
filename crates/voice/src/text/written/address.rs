//! Addresses: URL, e-mail, domain, IP and MAC address, path, file name, handle, hashtag.

use regex::Captures;

use super::super::numbers::{cardinal, digits};
use super::quantity::pairs;
use super::{Context, Rule, digit, group, letter, spelled};

/// Maximum bytes of an address that are spoken. The rest of a longer one is left out.
const SAID_BYTES_MAX: usize = 400;
/// Schemes that are not spoken.
const SILENT_SCHEMES: [&str; 2] = ["https://", "http://"];
const SCHEMES: [&str; 9] =
    ["ftp://", "sftp://", "file://", "ws://", "wss://", "ssh://", "git://", "s3://", "hf://"];
/// Parts of addresses that are spelled.
const SPELLED: &str = "www id io ai uk us eu tv fm html htm php asp aspx js css json xml pdf png jpg jpeg gif svg txt csv md mp3 mp4 wav \
                       url uri api http https ftp ssh usr lib src etc tmp py rs ts sh cpp exe dll docx xlsx pptx yaml yml toml gz sql faq pr \
                       ip db ui ux cdn dns de fr ch cn jp nz ca es ru cz";

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: word,
        pattern: r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.){1,6}[A-Za-z]{2,12}",
        say: electronic,
    },
    Rule {
        begins: digit,
        pattern: r"((?:[0-9]{1,3}\.){3}[0-9]{1,3})(?::([0-9]{1,5}))?(?:/([0-9]{1,2}))?",
        say: ip,
    },
    Rule { begins: hexadecimal, pattern: r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", say: mac },
    Rule { begins: hexadecimal, pattern: r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}", say: ip6 },
    Rule {
        begins: word,
        pattern: r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,40})\.){1,5}(?:com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|co|me|tv|fm|uk|us|eu|de|fr|es|it|nl|ch|at|be|se|no|dk|fi|pl|cz|ru|cn|jp|kr|in|au|nz|ca|br|mx|ly|gl|xyz|tech|cloud|online|site|blog|shop)\b(?::[0-9]{1,5})?(?:/(?:[^\s<>\x22)\]]{0,100}[^\s<>\x22)\].,;:!?])?)?",
        say: domain,
    },
    Rule {
        begins: localhost,
        pattern: r"localhost(?::([0-9]{1,5}))?(?:/[^\s<>\x22)\]]{0,100})?",
        say: electronic,
    },
    Rule {
        begins: letter,
        pattern: r"[A-Z]:\\(?:[A-Za-z0-9_À-ɏ. +-]{1,40}\\){0,8}[A-Za-z0-9_À-ɏ.+-]{0,40}",
        say: drive,
    },
    Rule { begins: path, pattern: r"(?:~|\.{1,2})?(?:/[A-Za-z0-9_À-ɏ.+@-]{1,60}){1,12}/?", say: file_path },
    Rule {
        begins: word,
        pattern: r"(?:[A-Za-z0-9_À-ɏ.+-]{1,60}/){1,8}[A-Za-z0-9_À-ɏ+-]{1,60}\.[A-Za-z0-9]{1,5}\b",
        say: file,
    },
    Rule {
        begins: word,
        pattern: r"[A-Za-z0-9_À-ɏ+-]{1,60}(?:\.[A-Za-z0-9_À-ɏ+-]{1,20}){0,2}\.(?:txt|pdf|py|rs|js|ts|tsx|jsx|json|html?|css|csv|md|png|jpe?g|gif|svg|mp3|mp4|mov|avi|wav|flac|zip|gz|tar|7z|exe|dll|docx?|xlsx?|pptx?|ya?ml|toml|xml|sh|bat|c|h|cpp|java|go|sql|log|ini|cfg|conf|gguf|safetensors)\b",
        say: file,
    },
    Rule {
        begins: at, pattern: r"@([A-Za-z_][A-Za-z0-9_À-ɏ.-]{0,38}[A-Za-z0-9_À-ɏ]|[A-Za-z])", say: handle
    },
    Rule { begins: hash, pattern: r"#([0-9A-Fa-f]{8}|[0-9A-Fa-f]{6}|[0-9A-Fa-f]{3,4})", say: color },
    Rule {
        begins: hash,
        pattern: r"#([A-Za-z_][A-Za-z0-9_À-ɏ]{0,60}|[0-9]{1,4}[A-Za-z][A-Za-z0-9_À-ɏ]{2,60})",
        say: hashtag,
    },
];

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn hexadecimal(c: char) -> bool {
    c.is_ascii_hexdigit() || c == ':'
}

fn localhost(c: char) -> bool {
    c == 'l'
}

fn path(c: char) -> bool {
    "/~.".contains(c)
}

fn at(c: char) -> bool {
    c == '@'
}

fn hash(c: char) -> bool {
    c == '#'
}

/// URL, which may be longer than the window of patterns. Returns its length in bytes and its words.
pub(super) fn long(rest: &str) -> Option<(usize, String)> {
    let begins =
        |scheme: &&str| rest.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let silent = SILENT_SCHEMES.iter().find(|scheme| begins(scheme));
    let scheme = silent.or_else(|| SCHEMES.iter().find(|scheme| begins(scheme)));
    let is_www = rest.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("www."));
    if scheme.is_none() && !is_www {
        return None;
    }
    let end = rest.find(|c: char| c.is_whitespace() || "<>\"“”".contains(c)).unwrap_or(rest.len());
    let mut url =
        rest[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '’', '*', '_', '`', ']', '}']);
    // A closing bracket belongs to the text unless the address has its opening one.
    let open = url.matches('(').count();
    let mut closed = url.matches(')').count();
    while closed > open && url.ends_with(')') {
        url = url[..url.len() - 1].trim_end_matches(['.', ',', ';', ':', '!', '?']);
        closed -= 1;
    }
    let said_end = super::border(url, SAID_BYTES_MAX);
    let skipped = silent.map_or(0, |scheme| scheme.len());
    let said = url.get(skipped..said_end).map(spoken_from_host).unwrap_or_default();
    (url.len() > skipped && !said.is_empty()).then_some((url.len(), said))
}

/// Address that begins with a host. Capitals of a host do not matter, and an IP address is spoken digit by
/// digit.
fn spoken_from_host(address: &str) -> String {
    if let Some((name, rest)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return [one_by_one(name, "colon"), spoken(rest)].join(" ").trim_end().to_owned();
    }
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    let (host, rest) = address.split_at(end);
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    let is_ip =
        name.split('.').count() == 4 && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_ip {
        let name = name.split('.').map(digits).collect::<Vec<_>>().join(" dot ");
        return [name, spoken(&[port, rest].concat())].join(" ").trim_end().to_owned();
    }
    match host.chars().any(char::is_lowercase) {
        true => spoken(address),
        false => spoken(&[&host.to_lowercase(), rest].concat()),
    }
}

/// Address in words: signs by name, parts as words, letters or numbers.
fn spoken(address: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest = address;
    while let Some(first) = rest.chars().next() {
        let kind = |c: char| if c.is_alphabetic() { 1 } else { 2 * usize::from(c.is_ascii_digit()) };
        let end = match kind(first) {
            0 => first.len_utf8(),
            own => rest.find(|c| kind(c) != own).unwrap_or(rest.len()),
        };
        let (run, after) = rest.split_at(end);
        let is_port = words.last().is_some_and(|last| last == "colon") && run.len() > 2;
        words.push(match kind(first) {
            1 => part(run),
            2 if is_port => digits(run),
            2 => number(run),
            _ => sign(first, after).to_owned(),
        });
        rest = after;
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

fn part(run: &str) -> String {
    let is_spelled = SPELLED.split_whitespace().any(|known| run.eq_ignore_ascii_case(known));
    let has_vowel = run.to_ascii_lowercase().contains(['a', 'e', 'i', 'o', 'u', 'y']) || !run.is_ascii();
    let is_ending = ["com", "org", "net", "gov"].iter().any(|ending| run.eq_ignore_ascii_case(ending));
    if run.chars().count() == 1 {
        return run.to_owned();
    }
    let is_capital = !is_ending && run.len() < 4 && run.chars().all(char::is_uppercase);
    if is_spelled || is_capital || !has_vowel && run.len() <= 6 {
        return spelled(run);
    }
    // `MachineLearning` is two words.
    let mut words = String::with_capacity(run.len() + 4);
    let mut last = ' ';
    for c in run.chars() {
        if c.is_uppercase() && last.is_lowercase() {
            words.push(' ');
        }
        words.push(c);
        last = c;
    }
    words
}

fn number(run: &str) -> String {
    match run.len() {
        1..=3 if !run.starts_with('0') || run.len() == 1 => run.parse().map(cardinal).unwrap_or_default(),
        4 if run.starts_with(['1', '2']) => pairs(run),
        _ => digits(run),
    }
}

fn sign(sign: char, after: &str) -> &'static str {
    match sign {
        '.' => "dot",
        '/' if after.is_empty() => "",
        '/' => "slash",
        '\\' => "backslash",
        '?' => "question mark",
        '=' => "equals",
        '&' => "and",
        '-' | '–' => "dash",
        '_' => "underscore",
        '#' => "hash",
        '%' => "percent",
        '~' => "tilde",
        ':' => "colon",
        '+' => "plus",
        '@' => "at",
        '!' => "exclamation mark",
        '*' => "star",
        ',' => "comma",
        ';' => "semicolon",
        '$' => "dollar",
        _ => "",
    }
}

fn electronic(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(spoken_from_host(group(found, 0)))
}

/// Path on a drive.
fn drive(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(spoken(group(found, 0)))
}

fn domain(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let whole = group(found, 0);
    // `3.in` is no domain, nor is the end of a sentence without a space: `it.It`.
    if !whole.contains(|c: char| c.is_ascii_alphabetic()) || whole.starts_with(digit) && whole.len() < 6 {
        return None;
    }
    let host = whole.split(['/', ':']).next().unwrap_or(whole);
    let ending = host.rsplit('.').next().unwrap_or_default();
    // Short English words count as a top-level domain only after another point or before a path.
    let is_word = ["in", "it", "at", "be", "no", "me", "us", "so", "is"].contains(&ending);
    let has_more = host.matches('.').count() > 1 || whole.contains('/');
    (!is_word || has_more).then(|| spoken_from_host(whole))
}

/// Trailing sentence signs are not part of a path.
fn file_path(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let whole = group(found, 0);
    if whole.ends_with(['.', '-', '+']) && context.after.trim().is_empty() {
        return Some(format!("{}.", spoken(whole.trim_end_matches(['.', '-', '+']))));
    }
    whole.contains(|c: char| c.is_alphabetic()).then(|| spoken(whole))
}

fn file(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let whole = group(found, 0);
    // `Node.js` is a name, and `and/or.txt` a file.
    let stem = whole.rsplit_once('.').map_or(whole, |(stem, _)| stem);
    let is_name = ["Node", "Vue", "Next", "React", "Three", "Express", "Nuxt", "D3", "Chart"].contains(&stem);
    (!is_name && stem.contains(|c: char| c.is_alphabetic())).then(|| spoken(whole))
}

fn ip(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let parts: Vec<&str> = group(found, 1).split('.').collect();
    if parts.iter().any(|part| part.parse::<u16>().map_or(true, |number| number > 255)) {
        return None;
    }
    let mut said = parts.into_iter().map(digits).collect::<Vec<_>>().join(" dot ");
    if !group(found, 2).is_empty() {
        said.push_str(&format!(" colon {}", digits(group(found, 2))));
    }
    if let Ok(bits) = group(found, 3).parse() {
        said.push_str(&format!(" slash {}", cardinal(bits)));
    }
    Some(said)
}

/// Hexadecimal digits one by one.
fn one_by_one(text: &str, link: &str) -> String {
    let mut words = Vec::new();
    for c in text.chars() {
        words.push(match c {
            ':' | '-' => link.to_owned(),
            _ if c.is_ascii_digit() => digits(c.encode_utf8(&mut [0; 4])),
            _ => c.to_ascii_uppercase().to_string(),
        });
    }
    words.join(" ")
}

fn mac(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(one_by_one(group(found, 0), "colon"))
}

fn ip6(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let whole = group(found, 0);
    let has_letter = whole.contains(|c: char| c.is_ascii_alphabetic());
    let is_whole = whole.contains("::") || whole.matches(':').count() == 7;
    (is_whole && (has_letter || whole.contains("::"))).then(|| one_by_one(whole, "colon"))
}

fn handle(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("at {}", spoken(group(found, 1))))
}

fn hashtag(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("hashtag {}", spoken(group(found, 1)).replace(" underscore ", " ")))
}

/// Color in hexadecimal: `#FF5733`. Words of these letters (`#cafe`) are hashtags, and digits alone (`#123`) a number.
fn color(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let code = group(found, 1);
    let has_digit = code.contains(digit);
    let has_letter = code.contains(|c: char| c.is_ascii_alphabetic());
    let is_even = code.chars().all(|c| code.starts_with(c)) && code.len() != 4;
    let is_named = context.words.iter().any(|word| {
        ["color", "colour", "hex", "background", "fill"].iter().any(|name| word.eq_ignore_ascii_case(name))
    });
    let is_color = has_digit && has_letter || is_even && (has_letter || code.len() > 3) || is_named;
    is_color.then(|| format!("hash {}", one_by_one(code, "")))
}
