//! Money: a sign or a code before or after an amount, with a magnitude, a range or a rate.

use regex::Captures;

use super::quantity::{amount, cardinal, sign_word};
use super::{Context, Rule, digit, group};

/// Pattern of currency signs, with the letters of a country before a dollar.
pub(super) const SYMBOLS: &str = r"(?:(?:US|CA|C|AU|A|NZ|HK|MX|NT|S|R)?\$|[€£¥₹₩₽₿₺₫₪₴₦฿₱]|Rs\.? ?|CHF )";
/// Pattern of currency codes.
pub(super) const CODES: &str = r"(?:USD|EUR|GBP|JPY|CHF|CAD|AUD|NZD|HKD|SGD|CNY|RMB|INR|KRW|RUB|BRL|MXN|SEK|NOK|DKK|PLN|CZK|HUF|TRY|ZAR|ILS|THB|BTC|ETH)";

/// Names of a currency: unit in singular and plural, subunit in singular and plural. Without a subunit,
/// fractions are read as decimals.
type Names = [&'static str; 4];

const CURRENCIES: [(&str, Names); 52] = [
    ("$", ["dollar", "dollars", "cent", "cents"]),
    ("US$", ["U S dollar", "U S dollars", "cent", "cents"]),
    ("USD", ["U S dollar", "U S dollars", "cent", "cents"]),
    ("CA$", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("C$", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("CAD", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("AU$", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("A$", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("AUD", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("NZ$", ["New Zealand dollar", "New Zealand dollars", "cent", "cents"]),
    ("NZD", ["New Zealand dollar", "New Zealand dollars", "cent", "cents"]),
    ("HK$", ["Hong Kong dollar", "Hong Kong dollars", "cent", "cents"]),
    ("HKD", ["Hong Kong dollar", "Hong Kong dollars", "cent", "cents"]),
    ("NT$", ["Taiwan dollar", "Taiwan dollars", "cent", "cents"]),
    ("S$", ["Singapore dollar", "Singapore dollars", "cent", "cents"]),
    ("SGD", ["Singapore dollar", "Singapore dollars", "cent", "cents"]),
    ("R$", ["Brazilian real", "Brazilian reais", "centavo", "centavos"]),
    ("BRL", ["Brazilian real", "Brazilian reais", "centavo", "centavos"]),
    ("€", ["euro", "euros", "cent", "cents"]),
    ("EUR", ["euro", "euros", "cent", "cents"]),
    ("£", ["pound", "pounds", "penny", "pence"]),
    ("GBP", ["pound", "pounds", "penny", "pence"]),
    ("¥", ["yen", "yen", "sen", "sen"]),
    ("JPY", ["yen", "yen", "sen", "sen"]),
    ("CNY", ["yuan", "yuan", "fen", "fen"]),
    ("RMB", ["yuan", "yuan", "fen", "fen"]),
    ("₹", ["rupee", "rupees", "paisa", "paise"]),
    ("Rs", ["rupee", "rupees", "paisa", "paise"]),
    ("INR", ["rupee", "rupees", "paisa", "paise"]),
    ("₩", ["won", "won", "jeon", "jeon"]),
    ("KRW", ["won", "won", "jeon", "jeon"]),
    ("₽", ["ruble", "rubles", "kopeck", "kopecks"]),
    ("RUB", ["ruble", "rubles", "kopeck", "kopecks"]),
    ("₿", ["bitcoin", "bitcoins", "", ""]),
    ("BTC", ["bitcoin", "bitcoins", "", ""]),
    ("ETH", ["ether", "ether", "", ""]),
    ("₺", ["lira", "lira", "kurush", "kurush"]),
    ("TRY", ["lira", "lira", "kurush", "kurush"]),
    ("₫", ["dong", "dong", "xu", "xu"]),
    ("₪", ["shekel", "shekels", "agora", "agorot"]),
    ("ILS", ["shekel", "shekels", "agora", "agorot"]),
    ("₴", ["hryvnia", "hryvnias", "kopiyka", "kopiykas"]),
    ("₦", ["naira", "naira", "kobo", "kobo"]),
    ("฿", ["baht", "baht", "satang", "satang"]),
    ("THB", ["baht", "baht", "satang", "satang"]),
    ("₱", ["peso", "pesos", "centavo", "centavos"]),
    ("MX$", ["Mexican peso", "Mexican pesos", "centavo", "centavos"]),
    ("MXN", ["Mexican peso", "Mexican pesos", "centavo", "centavos"]),
    ("CHF", ["Swiss franc", "Swiss francs", "centime", "centimes"]),
    ("PLN", ["zloty", "zlotys", "grosz", "groszy"]),
    ("ZAR", ["rand", "rand", "cent", "cents"]),
    ("CZK", ["Czech crown", "Czech crowns", "heller", "hellers"]),
];
const CROWNS: [(&str, Names); 5] = [
    ("kr", ["krone", "kroner", "øre", "øre"]),
    ("SEK", ["Swedish crown", "Swedish crowns", "öre", "öre"]),
    ("NOK", ["Norwegian crown", "Norwegian crowns", "öre", "öre"]),
    ("DKK", ["Danish crown", "Danish crowns", "öre", "öre"]),
    ("HUF", ["forint", "forints", "filler", "filler"]),
];
/// Units of time and other rates, with their names.
const RATES: [(&str, &str); 22] = [
    ("hour", "hour"),
    ("hr", "hour"),
    ("h", "hour"),
    ("day", "day"),
    ("week", "week"),
    ("wk", "week"),
    ("month", "month"),
    ("mo", "month"),
    ("year", "year"),
    ("yr", "year"),
    ("kg", "kilogram"),
    ("lb", "pound"),
    ("oz", "ounce"),
    ("gal", "gallon"),
    ("person", "person"),
    ("pp", "person"),
    ("night", "night"),
    ("user", "user"),
    ("unit", "unit"),
    ("GB", "gigabyte"),
    ("kWh", "kilowatt hour"),
    ("ton", "ton"),
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)(<C>) ?([-−]?<N>)(?: ?(<SCALE>|[kKMBT]|bn|mn|mil|mm|MM|tn|m|b)\b)?<TO>(?:<C>)? ?(<N>)(?: ?(<SCALE>|[kKMBT]|bn|mn|mil|mm|MM|tn|m|b)\b)?",
        say: range_before,
    },
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)(<C>) ?([-−]?<N>)(?:[ -]?(<SCALE>|[kKMBT]|bn|mn|mil|mm|MM|tn|m|b)\b)?(?:(/| per | an? )(hour|hr|h|day|week|wk|month|mo|year|yr|kg|lb|oz|gal|person|pp|night|user|unit|GB|kWh|ton)\b)?(?: (USD|CAD|AUD|NZD|HKD|SGD|MXN)\b)?",
        say: sign_before,
    },
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)(<C>) ?([-−]?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{2}|[-−]?[0-9]{1,9},[0-9]{1,2})(?:[ -]?(<SCALE>|[kKMBT]|bn|mn|mil|mm|MM|tn|m|b)\b)?(?:(/| per | an? )(hour|hr|h|day|week|wk|month|mo|year|yr|kg|lb|oz|gal|person|pp|night|user|unit|GB|kWh|ton)\b)?",
        say: sign_before,
    },
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)(<K>) ?([-−]?<N>)(?: ?(<SCALE>|[kKMBT]|bn|mn|tn|m)\b)?",
        say: sign_before,
    },
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)(<N>)<TO>(<N>) ?(€|£|¥|₹|₽|₺|<K>\b)",
        say: range_behind,
    },
    Rule {
        begins: money_begins,
        pattern: r"([-−+~≈]?)([0-9]{1,3}(?:[. \u{a0}\u{202f}\u{2009}][0-9]{3})+(?:,[0-9]{2})?|[0-9]{1,9},[0-9]{2}|<N>)(?: ?(<SCALE>|[kKMB]|bn|mn|tn))? ?(€|£|¥|₹|₽|₺|\$|zł|kr\b|<K>\b)(?:(/| per )(hour|hr|h|day|week|wk|month|mo|year|yr|kg|lb|oz|gal|person|pp|night|user|unit|GB|kWh|ton)\b)?",
        say: sign_behind,
    },
    Rule { begins: digit, pattern: r"(<N>) ?(¢|ct\b)", say: cents },
];

fn money_begins(c: char) -> bool {
    c.is_ascii_digit()
        || "-−+~≈.".contains(c)
        || "$€£¥₹₩₽₿₺₫₪₴₦฿₱UCANHSREM".contains(c)
        || c.is_ascii_uppercase()
}

fn names(sign: &str) -> Option<&'static Names> {
    let sign = sign.trim().trim_end_matches('.');
    let sign = if sign == "zł" { "PLN" } else { sign };
    CURRENCIES.iter().chain(&CROWNS).find(|(known, _)| *known == sign).map(|(_, names)| names)
}

/// Scale in words.
fn scale(text: &str) -> &str {
    match text {
        "k" | "K" => "thousand",
        "m" | "M" | "mn" | "mil" | "mm" | "MM" => "million",
        "b" | "B" | "bn" => "billion",
        "T" | "tn" => "trillion",
        other => other,
    }
}

/// Amount of a currency.
fn said(context: &Context<'_>, number: &str, magnitude: &str, names: &Names) -> String {
    let dialect = context.dialect;
    // `1.234,56` and `5,99`: a decimal comma.
    let comma = number.rfind(',').filter(|&at| [2, 3].contains(&(number.len() - at)));
    let number = comma.map_or_else(
        || number.to_owned(),
        |at| {
            format!(
                "{}.{}",
                number[..at].replace(['.', ' ', '\u{a0}', '\u{202f}', '\u{2009}'], ""),
                &number[at + 1..]
            )
        },
    );
    let [one, many, cent, cents] = names;
    // `a $5-a-day plan`
    let is_compound =
        context.after.strip_prefix('-').is_some_and(|rest| rest.starts_with(char::is_alphabetic));
    let is_attribute = context.is_attribute() || is_compound;
    if !magnitude.is_empty() {
        let unit = if is_attribute { one } else { many };
        return format!("{} {} {unit}", amount(&number, dialect), scale(magnitude));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if cent.is_empty() && !fraction.is_empty() {
        return format!("{} {many}", amount(&number, dialect));
    }
    let is_single = whole == "1" || is_attribute;
    let small = fraction.parse::<u64>().unwrap_or(0) * if fraction.len() == 1 { 10 } else { 1 };
    let main = format!("{} {}", amount(whole, dialect), if is_single { one } else { many });
    let part = format!("{} {}", cardinal(small, dialect), if small == 1 { cent } else { cents });
    match fraction.len() {
        0..=2 if small == 0 => main,
        0..=2 if whole.is_empty() || whole == "0" => part,
        0..=2 => format!("{main} and {part}"),
        _ => format!("{} {many}", amount(&number, dialect)),
    }
}

/// Rate in words: " per hour".
fn rate(found: &Captures<'_>, index: usize) -> String {
    let (link, unit) = (group(found, index), group(found, index + 1));
    let name = RATES.iter().find(|(short, _)| *short == unit).map_or(unit, |(_, name)| *name);
    match link {
        "" => String::new(),
        "/" | " per " => format!(" per {name}"),
        _ => format!("{link}{name}"),
    }
}

fn sign_before(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    // `$20 CAD`: the code says which dollar.
    let code = if group(found, 2) == "$" { group(found, 7) } else { "" };
    let names = names(if code.is_empty() { group(found, 2) } else { code })?;
    let number = group(found, 3);
    let minus = sign_word(if number.starts_with(['-', '−']) { "-" } else { group(found, 1) });
    let number = number.trim_start_matches(['-', '−']);
    // `$20s` and `$5-a-day` are not handled here; `$20s` are several bills.
    Some(format!("{minus}{}{}", said(context, number, group(found, 4), names), rate(found, 5)))
}

fn sign_behind(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    // `5 $10 bills`: the sign belongs to the next amount.
    if context.after.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let names = names(group(found, 4))?;
    // A sign after the amount is European, and so is a point between thousands.
    let text = group(found, 2);
    let is_grouped = !text.contains(',') && text.split('.').skip(1).all(|part| part.len() == 3);
    let plain = if is_grouped { text.replace('.', "") } else { text.to_owned() };
    let number = said(context, &plain, group(found, 3), names);
    Some(format!("{}{number}{}", sign_word(group(found, 1)), rate(found, 5)))
}

fn range_before(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let names @ [one, many, ..] = names(group(found, 2))?;
    let (from, first) = (group(found, 3), scale(group(found, 4)));
    let (to, last) = (group(found, 5), scale(group(found, 6)));
    // `$1.50-$2.00`: each in dollars and cents.
    let has_cents = |number: &str| number.split_once('.').is_some_and(|(_, cents)| cents.len() == 2);
    if first.is_empty() && last.is_empty() && (has_cents(from) || has_cents(to)) {
        let ends = [from, to].map(|number| said(context, number, "", names));
        return Some(format!("{}{}", sign_word(group(found, 1)), ends.join(" to ")));
    }
    let (from, to) = (amount(from, context.dialect), amount(to, context.dialect));
    let first = if first.is_empty() || first == last { String::new() } else { format!(" {first}") };
    let last = if last.is_empty() { String::new() } else { format!(" {last}") };
    let unit = if context.is_attribute() { one } else { many };
    Some(format!("{}{from}{first} to {to}{last} {unit}", sign_word(group(found, 1))))
}

fn range_behind(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let [_, many, ..] = names(group(found, 4))?;
    let (from, to) = (amount(group(found, 2), context.dialect), amount(group(found, 3), context.dialect));
    Some(format!("{}{from} to {to} {many}", sign_word(group(found, 1))))
}

fn cents(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = group(found, 1);
    Some(format!("{} {}", amount(number, context.dialect), if number == "1" { "cent" } else { "cents" }))
}
