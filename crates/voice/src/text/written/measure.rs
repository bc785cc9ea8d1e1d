//! Measures: an amount with a unit, percents, temperatures, angles, feet and inches, sizes such as `1920×1080`.

use regex::Captures;

use super::super::english::Dialect;
use super::quantity::{amount, pairs, sign_word};
use super::{Context, Rule, digit, group};

/// Units: symbol, singular, plural. A space may precede symbols of several letters, and those in [`APART`].
const UNITS: &[(&str, &str, &str)] = &[
    ("km", "kilometer", "kilometers"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("m", "meter", "meters"),
    ("nm", "nanometer", "nanometers"),
    ("µm", "micrometer", "micrometers"),
    ("μm", "micrometer", "micrometers"),
    ("mi", "mile", "miles"),
    ("miles", "mile", "miles"),
    ("yd", "yard", "yards"),
    ("yds", "yard", "yards"),
    ("ft", "foot", "feet"),
    ("in", "inch", "inches"),
    ("inch", "inch", "inches"),
    ("inches", "inch", "inches"),
    ("feet", "foot", "feet"),
    ("kg", "kilogram", "kilograms"),
    ("mg", "milligram", "milligrams"),
    ("g", "gram", "grams"),
    ("µg", "microgram", "micrograms"),
    ("μg", "microgram", "micrograms"),
    ("mcg", "microgram", "micrograms"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("t", "ton", "tons"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("l", "liter", "liters"),
    ("L", "liter", "liters"),
    ("dl", "deciliter", "deciliters"),
    ("dL", "deciliter", "deciliters"),
    ("cl", "centiliter", "centiliters"),
    ("gal", "gallon", "gallons"),
    ("qt", "quart", "quarts"),
    ("pt", "point", "points"),
    ("tbsp", "tablespoon", "tablespoons"),
    ("tsp", "teaspoon", "teaspoons"),
    ("ms", "millisecond", "milliseconds"),
    ("µs", "microsecond", "microseconds"),
    ("μs", "microsecond", "microseconds"),
    ("ns", "nanosecond", "nanoseconds"),
    ("s", "second", "seconds"),
    ("sec", "second", "seconds"),
    ("secs", "second", "seconds"),
    ("min", "minute", "minutes"),
    ("mins", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("hrs", "hour", "hours"),
    ("yr", "year", "years"),
    ("yrs", "year", "years"),
    ("mph", "mile per hour", "miles per hour"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("kmh", "kilometer per hour", "kilometers per hour"),
    ("mpg", "mile per gallon", "miles per gallon"),
    ("rpm", "R P M", "R P M"),
    ("fps", "frame per second", "frames per second"),
    ("bpm", "beat per minute", "beats per minute"),
    ("dpi", "dot per inch", "dots per inch"),
    ("ppi", "pixel per inch", "pixels per inch"),
    ("ppm", "part per million", "parts per million"),
    ("ppb", "part per billion", "parts per billion"),
    ("px", "pixel", "pixels"),
    ("MP", "megapixel", "megapixels"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("THz", "terahertz", "terahertz"),
    ("bit", "bit", "bits"),
    ("B", "byte", "bytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("kB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("PB", "petabyte", "petabytes"),
    ("KiB", "kibibyte", "kibibytes"),
    ("MiB", "mebibyte", "mebibytes"),
    ("GiB", "gibibyte", "gibibytes"),
    ("TiB", "tebibyte", "tebibytes"),
    ("Kb", "kilobit", "kilobits"),
    ("Mb", "megabit", "megabits"),
    ("Gb", "gigabit", "gigabits"),
    ("kbps", "kilobit per second", "kilobits per second"),
    ("Kbps", "kilobit per second", "kilobits per second"),
    ("Mbps", "megabit per second", "megabits per second"),
    ("Gbps", "gigabit per second", "gigabits per second"),
    ("Mbit", "megabit", "megabits"),
    ("Gbit", "gigabit", "gigabits"),
    ("W", "watt", "watts"),
    ("mW", "milliwatt", "milliwatts"),
    ("kW", "kilowatt", "kilowatts"),
    ("MW", "megawatt", "megawatts"),
    ("GW", "gigawatt", "gigawatts"),
    ("Wh", "watt hour", "watt hours"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("MWh", "megawatt hour", "megawatt hours"),
    ("mAh", "milliamp hour", "milliamp hours"),
    ("Ah", "amp hour", "amp hours"),
    ("V", "volt", "volts"),
    ("mV", "millivolt", "millivolts"),
    ("kV", "kilovolt", "kilovolts"),
    ("mA", "milliamp", "milliamps"),
    ("Ω", "ohm", "ohms"),
    ("kΩ", "kiloohm", "kiloohms"),
    ("J", "joule", "joules"),
    ("kJ", "kilojoule", "kilojoules"),
    ("cal", "calorie", "calories"),
    ("kcal", "kilocalorie", "kilocalories"),
    ("hp", "horsepower", "horsepower"),
    ("Pa", "pascal", "pascals"),
    ("hPa", "hectopascal", "hectopascals"),
    ("kPa", "kilopascal", "kilopascals"),
    ("psi", "pound per square inch", "pounds per square inch"),
    ("mmHg", "millimeter of mercury", "millimeters of mercury"),
    ("dB", "decibel", "decibels"),
    ("ha", "hectare", "hectares"),
    ("mol", "mole", "moles"),
    ("lm", "lumen", "lumens"),
    ("acres", "acre", "acres"),
    ("RPM", "R P M", "R P M"),
    ("MPH", "mile per hour", "miles per hour"),
    ("MPa", "megapascal", "megapascals"),
    ("GPa", "gigapascal", "gigapascals"),
    ("bar", "bar", "bars"),
    ("mbar", "millibar", "millibars"),
    ("kN", "kilonewton", "kilonewtons"),
    ("Nm", "newton meter", "newton meters"),
    ("MJ", "megajoule", "megajoules"),
    ("GWh", "gigawatt hour", "gigawatt hours"),
    ("TWh", "terawatt hour", "terawatt hours"),
    ("µl", "microliter", "microliters"),
    ("μl", "microliter", "microliters"),
    ("µL", "microliter", "microliters"),
    ("μL", "microliter", "microliters"),
    ("µA", "microamp", "microamps"),
    ("μA", "microamp", "microamps"),
    ("pF", "picofarad", "picofarads"),
    ("nF", "nanofarad", "nanofarads"),
    ("µF", "microfarad", "microfarads"),
    ("μF", "microfarad", "microfarads"),
    ("dBm", "D B M", "D B M"),
    ("dBA", "D B A", "D B A"),
    ("MΩ", "megaohm", "megaohms"),
    ("cc", "C C", "C C"),
    ("fl oz", "fluid ounce", "fluid ounces"),
    ("fl. oz", "fluid ounce", "fluid ounces"),
    ("tok", "token", "tokens"),
    ("tokens", "token", "tokens"),
    ("req", "request", "requests"),
];
/// One-letter symbols that a space may precede.
const APART: [&str; 10] = ["m", "g", "l", "L", "V", "W", "t", "s", "h", "J"];

pub(super) const RULES: &[Rule] = &[
    Rule { begins: digit, pattern: r"(10+)s(?: of)", say: super::quantity::hundreds },
    Rule { begins: digit, pattern: r"(<N>) ?ft\.? (<N>) ?in\b\.?", say: feet_then_inches },
    Rule {
        begins: digit,
        pattern: r"(<N>)(?:'|′|’) ?([0-9]{1,2}(?:\.[0-9])?|[0-9]{0,2} ?[½¼¾]?)(?:''|’’|”|″|\x22)?",
        say: feet_and_inches,
    },
    Rule {
        begins: digit,
        pattern: r"(<N>)(?:″|\x22|'') ?(?:x|×|by) ?(<N>)(?:″|\x22|'')",
        say: size_in_inches,
    },
    Rule {
        begins: digit,
        pattern: r"(<N>) ?(<U>) ?(?:x|×) ?(<N>) ?(<U>)\b(?: ?(?:x|×) ?(<N>) ?(<U>)\b)?",
        say: sizes,
    },
    Rule {
        begins: digit,
        pattern: r"(?:([0-9]{1,3}) )?([0-9]{1,2})/([0-9]{1,2})[ -]?(<U>)\b",
        say: fraction,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,3}) ?h(?:rs?)? ?([0-9]{1,2}) ?m(?:ins?)?(?: ?([0-9]{1,2}) ?s(?:ecs?)?)?\b",
        say: duration,
    },
    Rule { begins: digit, pattern: r"()([0-9]{1,3})m(?:in)? ?([0-9]{1,2})s\b", say: duration },
    Rule { begins: digit, pattern: r"([0-9]{1,2})/([0-9]{1,3})(?:″|\x22|''|”)", say: part_of_inch },
    Rule {
        begins: digit, pattern: r"(<N>)( ?[½¼¾]|[ -][0-9]{1,2}/[0-9]{1,2})?(?:″|\x22|''|”)", say: inches
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,3})° ?([0-9]{1,2})['′’](?: ?([0-9]{1,2}(?:\.[0-9]{1,3})?)(?:\x22|″|''))? ?([NSEW])?",
        say: angle,
    },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)(<N>)(?: ?[°º] ?[CF]?)?<TO>([-−+]?)(<N>) ?(?:[°º] ?(C|F|K|N|S|E|W)?\b|(℃)|(℉)|[°º])",
        say: degree_range,
    },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)(<N>) ?(?:[°º](?: ?(C|F|K|N|S|E|W)\b)?|(℃)|(℉))",
        say: degrees,
    },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)(<N>)(?: ?%)?<TO>([-−+]?)(<N>) ?(%|‰|percent)",
        say: percent_range,
    },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)([0-9]{1,9},[0-9]{1,2}|<N>)[ \u{a0}\u{202f}]?(%|‰)",
        say: percent,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9.,]{1,9}) ?(?:x|×|✕|X|by) ?([0-9.,]{1,9})(?: ?(?:x|×|✕|X|by) ?([0-9.,]{1,9}))? ?(?:(<U>)\b)?",
        say: size,
    },
    Rule { begins: digit, pattern: r"([0-9]{3,4})([pi])(?:([0-9]{2,3})?)", say: resolution },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)(<N>)(?: ?<U>\b)?<TO>(<N>)([ \u{a0}\u{202f}-]?)(?:(sq|square|cu|cubic)\.? )?(<U>)(?:(\^?2|²)|(\^?3|³))?(?:/(<U>|day|week|month|year)(?:(\^?2|²)|(\^?3|³))?)?",
        say: range,
    },
    Rule {
        begins: measure_begins,
        pattern: r"([-−+±~≈]?)(<N>)(?: (<SCALE>))?([ \u{a0}\u{202f}-]?)(?:(sq|square|cu|cubic)\.? )?(<U>)(?:(\^?2|²)|(\^?3|³))?(?:/(<U>|day|week|month|year)(?:(\^?2|²)|(\^?3|³))?)?",
        say: measure,
    },
    Rule { begins: digit, pattern: r"([-−+±~≈]?)(<N>) (in)\.( [a-z]{1,12}\b)?", say: inches_with_point },
    Rule { begins: degree_sign, pattern: r"(?:° ?([CF])\b|(℃)|(℉))", say: lone_degrees },
];

fn measure_begins(c: char) -> bool {
    c.is_ascii_digit() || "-−+±~≈.".contains(c)
}

fn degree_sign(c: char) -> bool {
    "°℃℉".contains(c)
}

/// Pattern of all symbols, longest first.
pub(super) fn unit_pattern() -> String {
    let mut symbols: Vec<&str> = UNITS.iter().map(|(symbol, ..)| *symbol).collect();
    symbols.sort_by_key(|symbol| std::cmp::Reverse(symbol.len()));
    format!("(?:{})", symbols.join("|").replace(". ", r"\. "))
}

fn unit(symbol: &str) -> Option<(&'static str, &'static str)> {
    let found = UNITS.iter().find(|(known, ..)| *known == symbol);
    found.map(|(_, one, many)| (*one, *many))
}

/// Name of a unit in singular or plural, with its power and its divisor.
fn named(found: &Captures<'_>, first: usize, is_single: bool) -> Option<String> {
    let (one, many) = unit(group(found, first + 1))?;
    let name = if is_single { one } else { many };
    let power = match group(found, first) {
        "sq" | "square" => "square ",
        "cu" | "cubic" => "cubic ",
        _ if !group(found, first + 2).is_empty() => "square ",
        _ if !group(found, first + 3).is_empty() => "cubic ",
        _ => "",
    };
    let below = group(found, first + 4);
    let below_name = unit(below).map_or(below, |(one, _)| one);
    let is_length = below_name.ends_with("meter") || ["foot", "inch", "mile", "yard"].contains(&below_name);
    let per = match (group(found, first + 5), group(found, first + 6)) {
        _ if below.is_empty() => String::new(),
        ("", "") => format!(" per {below_name}"),
        ("", _) if is_length => format!(" per cubic {below_name}"),
        ("", _) => format!(" per {below_name} cubed"),
        _ if is_length => format!(" per square {below_name}"),
        _ => format!(" per {below_name} squared"),
    };
    Some(format!("{power}{name}{per}"))
}

/// Returns true if a symbol may stand at this distance from its number.
fn fits(context: &Context<'_>, space: &str, symbol: &str, has_more: bool) -> bool {
    let is_letter = symbol.chars().count() == 1;
    match space {
        // `5B` and `7t` without a space are names.
        "" => {
            has_more || !(matches!(symbol, "B" | "t") || symbol == "V" && context.follows(&["the", "Type"]))
        }
        // `5-s`: one-letter symbols do not follow a hyphen, except in an attribute.
        "-" if symbol == "in" => !context.after.starts_with('-'),
        "-" => !is_letter || ["m", "g"].contains(&symbol) && !context.next_word().is_empty(),
        // `in` is a preposition, and `MP`, `ha` and `pt` are words, even after a space.
        _ if symbol == "in" => has_more,
        _ => !is_letter || has_more || APART.contains(&symbol) || symbol == "Ω",
    }
}

fn measure(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, scale, space, symbol) = (group(found, 2), group(found, 3), group(found, 4), group(found, 6));
    let has_more = !group(found, 5).is_empty() || !group(found, 7).is_empty() || !group(found, 8).is_empty();
    let has_more = has_more || !group(found, 9).is_empty();
    if !fits(context, space, symbol, has_more) {
        return None;
    }
    let is_single = number == "1" && scale.is_empty() || space == "-" || context.is_attribute();
    let scale = if scale.is_empty() { String::new() } else { format!(" {scale}") };
    let name = named(found, 5, is_single)?;
    Some(format!("{}{}{scale} {name}", sign_word(group(found, 1)), amount(number, context.dialect)))
}

fn range(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to, space, symbol) = (group(found, 2), group(found, 3), group(found, 4), group(found, 6));
    let has_more = !group(found, 5).is_empty() || !group(found, 7).is_empty() || !group(found, 8).is_empty();
    if !fits(context, space, symbol, has_more || !group(found, 9).is_empty()) {
        return None;
    }
    let name = named(found, 5, space == "-" || context.is_attribute())?;
    let (from, to) = (amount(from, context.dialect), amount(to, context.dialect));
    Some(format!("{}{from} to {to} {name}", sign_word(group(found, 1))))
}

/// Degrees in words, by the letter after the sign.
fn degree_name(letter: &str, is_single: bool) -> String {
    let plain = if is_single { "degree" } else { "degrees" };
    match letter {
        "C" | "℃" => format!("{plain} Celsius"),
        "F" | "℉" => format!("{plain} Fahrenheit"),
        "K" => "kelvin".to_owned(),
        "N" => format!("{plain} north"),
        "S" => format!("{plain} south"),
        "E" => format!("{plain} east"),
        "W" => format!("{plain} west"),
        _ => plain.to_owned(),
    }
}

fn letter_of<'a>(found: &Captures<'a>, first: usize) -> &'a str {
    [0, 1, 2].map(|index| group(found, first + index)).into_iter().find(|text| !text.is_empty()).unwrap_or("")
}

fn degrees(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    const TURNS: [&str; 8] = ["angle", "angles", "turn", "turns", "rotation", "view", "bend", "panorama"];
    let (number, letter) = (group(found, 2), letter_of(found, 3));
    let is_turn = letter.is_empty() && TURNS.contains(&context.next_word());
    let name = degree_name(letter, number == "1" || is_turn || context.is_attribute());
    Some(format!("{}{} {name}", sign_word(group(found, 1)), amount(number, context.dialect)))
}

fn degree_range(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to) = (amount(group(found, 2), context.dialect), amount(group(found, 4), context.dialect));
    let name = degree_name(letter_of(found, 5), false);
    Some(format!("{}{from} to {}{to} {name}", sign_word(group(found, 1)), sign_word(group(found, 3))))
}

fn lone_degrees(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(degree_name(letter_of(found, 1), false))
}

fn angle(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let part = |index: usize, one: &str| {
        let number = group(found, index);
        let plural = if number == "1" { "" } else { "s" };
        format!("{} {one}{plural}", amount(number.trim_start_matches('0'), context.dialect))
    };
    let seconds = if group(found, 3).is_empty() { String::new() } else { format!(" {}", part(3, "second")) };
    let side = match group(found, 4) {
        "N" => " north",
        "S" => " south",
        "E" => " east",
        "W" => " west",
        _ => "",
    };
    Some(format!("{} {}{seconds}{side}", part(1, "degree"), part(2, "minute")))
}

fn percent_word(sign: &str) -> &'static str {
    if sign == "‰" { "per mille" } else { "percent" }
}

fn percent(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = group(found, 2);
    // `3,5 %`: a comma before one or two digits is a decimal point.
    let comma = number.rfind(',').filter(|&at| number.len() - at < 4);
    let number =
        comma.map_or_else(|| number.to_owned(), |at| format!("{}.{}", &number[..at], &number[at + 1..]));
    let said = amount(&number, context.dialect);
    Some(format!("{}{said} {}", sign_word(group(found, 1)), percent_word(group(found, 3))))
}

fn percent_range(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (from, to) = (amount(group(found, 2), context.dialect), amount(group(found, 4), context.dialect));
    let (sign, last) = (sign_word(group(found, 1)), sign_word(group(found, 3)));
    Some(format!("{sign}{from} to {last}{to} {}", percent_word(group(found, 5))))
}

/// Number in a size. Four digits are two pairs, as in `1920×1080`.
fn of_size(text: &str, dialect: Dialect) -> Option<String> {
    let is_number = text.starts_with(digit) && text.ends_with(digit) && text.matches('.').count() < 2;
    let is_pairs = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.ends_with("00");
    is_number.then(|| if is_pairs { pairs(text) } else { amount(text, dialect) })
}

fn size(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (first, second, third) = (group(found, 1), group(found, 2), group(found, 3));
    let (whole, symbol) = (group(found, 0), group(found, 4));
    // A product such as `3 × 4 = 12` has spaces around the sign and no unit after it.
    let is_equation = context.after.trim_start().starts_with('=');
    let is_product = whole.contains(" × ") || is_equation;
    if context.after.starts_with('^') {
        return None;
    }
    if first.starts_with("0x") || first == "0" && whole.starts_with("0x") {
        return None;
    }
    let link = if is_product && symbol.is_empty() { "times" } else { "by" };
    let third = match third {
        "" => String::new(),
        text => format!(" {link} {}", of_size(text, context.dialect)?),
    };
    let name = match unit(symbol) {
        Some((one, many)) => format!(" {}", if context.is_attribute() { one } else { many }),
        None => String::new(),
    };
    let said = |text: &str| of_size(text, context.dialect);
    Some(format!("{} {link} {}{third}{name}", said(first)?, said(second)?))
}

fn resolution(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    const LINES: [&str; 9] = ["144", "240", "360", "480", "576", "720", "1080", "1440", "2160"];
    let lines = group(found, 1);
    let rate = match group(found, 3) {
        "" => String::new(),
        rate => format!(" {}", amount(rate, context.dialect)),
    };
    let letter = group(found, 2).to_uppercase();
    LINES.contains(&lines).then(|| format!("{} {letter}{rate}", pairs(lines)))
}

fn feet_and_inches(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (feet, inches, whole) = (group(found, 1), group(found, 2).trim(), group(found, 0));
    let has_sign = whole.contains('′') || !inches.is_empty() && (whole.ends_with('"') || !context.is_quoted);
    // `the 90's`, and `5'` at the end of a quotation, are no feet.
    if !has_sign || inches.is_empty() && !whole.contains('′') {
        return None;
    }
    let foot = if feet == "1" { "foot" } else { "feet" };
    let feet = format!("{} {foot}", amount(feet, context.dialect));
    if inches.is_empty() {
        return Some(feet);
    }
    let inch = if inches == "1" { "inch" } else { "inches" };
    Some(format!("{feet} {} {inch}", with_vulgar(inches, context.dialect)))
}

fn size_in_inches(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let said = |index: usize| amount(group(found, index), context.dialect);
    let unit = if context.is_attribute() { "inch" } else { "inches" };
    Some(format!("{} by {} {unit}", said(1), said(2)))
}

/// Sizes with a unit on each side: `5 cm x 3 cm`.
fn sizes(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let side = |index: usize| {
        let (number, (one, many)) = (group(found, index), unit(group(found, index + 1))?);
        Some(format!("{} {}", amount(number, context.dialect), if number == "1" { one } else { many }))
    };
    let third = if group(found, 5).is_empty() { String::new() } else { format!(" by {}", side(5)?) };
    Some(format!("{} by {}{third}", side(1)?, side(3)?))
}

/// `1/2 km` and `1 1/2 lb`.
fn fraction(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (whole, symbol) = (group(found, 1), group(found, 4));
    let (one, many) = unit(symbol)?;
    let (top, bottom) = (group(found, 2).parse().ok()?, group(found, 3).parse().ok()?);
    if top >= bottom || symbol.chars().count() == 1 && !APART.contains(&symbol) {
        return None;
    }
    let part = super::quantity::parts(top, bottom, context.dialect)?;
    Some(match whole {
        "" => format!("{part} {one}"),
        _ => format!("{} {many}", super::quantity::with_part(whole, &part, context.dialect)),
    })
}

/// `2h 15m` and `5m 30s`.
fn duration(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let part = |index: usize, name: &str| {
        let number = group(found, index);
        let plural = if number == "1" { "" } else { "s" };
        (!number.is_empty()).then(|| format!("{} {name}{plural}", amount(number, context.dialect)))
    };
    let parts = [part(1, "hour"), part(2, "minute"), part(3, "second")];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

fn feet_then_inches(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (feet, inches) = (group(found, 1), group(found, 2));
    let foot = if feet == "1" { "foot" } else { "feet" };
    let inch = if inches == "1" { "inch" } else { "inches" };
    let end = if group(found, 0).ends_with('.') && context.after.trim().is_empty() { "." } else { "" };
    let [feet, inches] = [feet, inches].map(|number| amount(number, context.dialect));
    Some(format!("{feet} {foot} {inches} {inch}{end}"))
}

/// Number that may end in a fraction sign such as ½.
fn with_vulgar(text: &str, dialect: Dialect) -> String {
    let part = match text.chars().next_back() {
        Some('½') => "a half",
        Some('¼') => "a quarter",
        Some('¾') => "three quarters",
        _ => return amount(text, dialect),
    };
    let whole = text.trim_end_matches(['½', '¼', '¾', ' ']);
    if whole.is_empty() { part.to_owned() } else { format!("{} and {part}", amount(whole, dialect)) }
}

/// `3/16"`
fn part_of_inch(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if group(found, 0).ends_with(['"', '”']) && context.is_quoted {
        return None;
    }
    let (top, bottom) = (group(found, 1).parse().ok()?, group(found, 2).parse().ok()?);
    let part = super::quantity::parts(top, bottom, context.dialect)?;
    Some(format!("{part} {}", if top == 1 { "inch" } else { "inches" }))
}

fn inches(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, part, whole) = (group(found, 1), group(found, 2), group(found, 0));
    if whole.ends_with(['"', '”']) && context.is_quoted {
        return None;
    }
    let part = part.trim_start_matches([' ', '-']);
    let fraction = match part.split_once('/') {
        Some((top, bottom)) => match (top, bottom) {
            ("1", "2") => " and a half".to_owned(),
            ("1", "4") => " and a quarter".to_owned(),
            ("3", "4") => " and three quarters".to_owned(),
            _ => {
                let ranked = super::super::numbers::ordinal(bottom.parse().ok()?);
                let plural = if top == "1" { "" } else { "s" };
                format!(" and {} {ranked}{plural}", amount(top, context.dialect))
            }
        },
        None if part.is_empty() => String::new(),
        None => format!(" and {}", with_vulgar(part, context.dialect)),
    };
    let is_single = number == "1" && fraction.is_empty() || context.is_attribute();
    let inch = if is_single { "inch" } else { "inches" };
    Some(format!("{}{fraction} {inch}", amount(number, context.dialect)))
}

fn inches_with_point(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let number = group(found, 2);
    let goes_on = group(found, 4);
    if goes_on.is_empty() {
        return None;
    }
    let inch = if number == "1" { "inch" } else { "inches" };
    Some(format!("{} {inch}{goes_on}", amount(number, context.dialect)))
}

/// Unit with a power and without a number: `per cm²`.
pub(super) fn power_of_unit(symbol: &str, power: &str) -> Option<String> {
    let (_, many) = unit(symbol).filter(|(one, _)| one.ends_with("meter"))?;
    Some(format!("{} {many}", if power == "²" { "square" } else { "cubic" }))
}
