//! Numbers in English words.

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [(u64, &str); 6] = [
    (1_000_000_000_000_000_000, "quintillion"),
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
];
/// Digits of a number that is said as one; longer ones are said digit by digit.
const DIGITS_MAX: usize = 15;

/// `123` as "one hundred twenty-three".
pub(super) fn cardinal(number: u64) -> String {
    match number {
        0..20 => SMALL[number as usize].to_owned(),
        20..100 => match number % 10 {
            0 => TENS[number as usize / 10].to_owned(),
            ones => format!("{}-{}", TENS[number as usize / 10], SMALL[ones as usize]),
        },
        100..1000 => joined(format!("{} hundred", SMALL[number as usize / 100]), number % 100),
        _ => {
            let scale = SCALES.iter().find(|(scale, _)| number >= *scale);
            let (scale, name) = scale.expect("every number from a thousand on is at least the last scale");
            joined(format!("{} {name}", cardinal(number / scale)), number % scale)
        }
    }
}

fn joined(head: String, rest: u64) -> String {
    if rest == 0 { head } else { format!("{head} {}", cardinal(rest)) }
}

/// `3` as "third".
pub(super) fn ordinal(number: u64) -> String {
    let words = cardinal(number);
    let at = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (head, last) = words.split_at(at);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        _ if last.ends_with('y') => format!("{}ieth", &last[..last.len() - 1]),
        _ => format!("{last}th"),
    };
    format!("{head}{last}")
}

/// `1984` as "nineteen eighty-four".
pub(super) fn year(number: u64) -> String {
    let (head, tail) = (number / 100, number % 100);
    match (head, tail) {
        (10..=99, 0) if head % 10 != 0 => format!("{} hundred", cardinal(head)),
        (10..=99, 1..=9) if head % 10 != 0 => format!("{} oh {}", cardinal(head), cardinal(tail)),
        (10..=99, 10..) => format!("{} {}", cardinal(head), cardinal(tail)),
        _ => cardinal(number),
    }
}

/// Digits one by one.
pub(super) fn digits(text: &str) -> String {
    let words = text.chars().filter_map(|digit| digit.to_digit(10)).map(|digit| SMALL[digit as usize]);
    words.collect::<Vec<_>>().join(" ")
}

/// A number as it is written: digits, commas between thousands, a point.
pub(super) fn written(text: &str) -> String {
    let text = text.replace(',', "");
    let (whole, fraction) =
        text.split_once('.').map_or((&text[..], None), |(whole, rest)| (whole, Some(rest)));
    let said = match whole.parse::<u64>() {
        Ok(number) if whole.len() <= DIGITS_MAX && !(whole.len() > 1 && whole.starts_with('0')) => {
            cardinal(number)
        }
        _ if whole.is_empty() => "zero".to_owned(),
        _ => digits(whole),
    };
    match fraction {
        Some(fraction) if !fraction.is_empty() => format!("{said} point {}", digits(fraction)),
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_as_they_are_read() {
        for (number, right) in [
            (0, "zero"),
            (21, "twenty-one"),
            (110, "one hundred ten"),
            (1_000_001, "one million one"),
            (12_345, "twelve thousand three hundred forty-five"),
        ] {
            assert_eq!(cardinal(number), right);
        }
        assert_eq!(
            ["3", "20", "101", "12"].map(|n| ordinal(n.parse().unwrap())),
            ["third", "twentieth", "one hundred first", "twelfth"]
        );
        assert_eq!(
            [1984, 1905, 1900, 2000, 2005, 2024].map(year),
            [
                "nineteen eighty-four",
                "nineteen oh five",
                "nineteen hundred",
                "two thousand",
                "two thousand five",
                "twenty twenty-four"
            ]
        );
        assert_eq!(written("1,234.50"), "one thousand two hundred thirty-four point five zero");
        assert_eq!(written("007"), "zero zero seven");
    }
}
