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
const SCALES: [(u128, &str); 11] = [
    (1_000_000_000_000_000_000_000_000_000_000_000, "decillion"),
    (1_000_000_000_000_000_000_000_000_000_000, "nonillion"),
    (1_000_000_000_000_000_000_000_000_000, "octillion"),
    (1_000_000_000_000_000_000_000_000, "septillion"),
    (1_000_000_000_000_000_000_000, "sextillion"),
    (1_000_000_000_000_000_000, "quintillion"),
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
];
/// `123` as "one hundred twenty-three".
pub(super) fn cardinal(number: u64) -> String {
    large(u128::from(number))
}

/// Cardinal of a number of up to 36 digits.
pub(super) fn large(number: u128) -> String {
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
            joined(format!("{} {name}", large(number / scale)), number % scale)
        }
    }
}

fn joined(head: String, rest: u128) -> String {
    if rest == 0 { head } else { format!("{head} {}", large(rest)) }
}

/// `1005` as "one thousand and five", the British way.
pub(super) fn with_and(number: u128) -> String {
    let is_scale = |word: &str| SCALES.iter().any(|(_, scale)| *scale == word);
    let all = large(number);
    let words: Vec<&str> = all.split(' ').collect();
    // The last group has no hundreds.
    let lone_tail = number > 1000 && (1..100).contains(&(number % 1000));
    let last_scale = words.iter().rposition(|word| is_scale(word)).filter(|_| lone_tail);
    let mut said = String::with_capacity(all.len() + 8);
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            said.push(' ');
        }
        said.push_str(word);
        let next = words.get(at + 1);
        let behind_hundred = *word == "hundred" && next.is_some_and(|next| !is_scale(next));
        if behind_hundred || last_scale == Some(at) {
            said.push_str(" and");
        }
    }
    said
}

/// `3` as "third".
pub(super) fn ordinal(number: u64) -> String {
    ordinal_of(&cardinal(number))
}

/// Ordinal of a cardinal in words.
pub(super) fn ordinal_of(words: &str) -> String {
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

/// Digits, one by one.
pub(super) fn digits(text: &str) -> String {
    let words = text.chars().filter_map(|digit| digit.to_digit(10)).map(|digit| SMALL[digit as usize]);
    words.collect::<Vec<_>>().join(" ")
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
        assert_eq!(digits("007"), "zero zero seven");
        assert_eq!(
            [101, 1_005, 1_000_100, 7_212].map(with_and),
            [
                "one hundred and one",
                "one thousand and five",
                "one million one hundred",
                "seven thousand two hundred and twelve"
            ]
        );
    }
}
