"""Writes spoken_numbers.tsv: numbers in words by num2words, an independent implementation.

    pip install num2words
    python make_spoken.py

num2words writes "one hundred and five" and commas between groups. An American voice leaves "and" out, and no voice says commas.
"""

import pathlib

from num2words import num2words

HERE = pathlib.Path(__file__).parent
CARDINALS = [
    0, 1, 5, 10, 11, 12, 13, 19, 20, 21, 42, 55, 99, 100, 101, 110, 111, 115, 120, 199, 200, 345, 999, 1_000, 1_001, 1_010,
    1_100, 2_345, 5_005, 9_999, 10_000, 10_001, 12_345, 20_300, 99_999, 100_000, 100_001, 123_456, 500_050, 999_999, 1_000_000,
    1_000_001, 1_234_567, 10_000_000, 100_200_300, 999_999_999, 1_000_000_000, 2_147_483_647, 4_294_967_296, 10**12,
    123_456_789_012, 10**15 + 1, 10**18,
]
ORDINALS = [1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 20, 21, 22, 23, 30, 42, 53, 99, 100, 101, 112, 120, 999, 1_000, 1_001, 10_000]
YEARS = [1100, 1105, 1215, 1492, 1600, 1699, 1776, 1800, 1805, 1865, 1900, 1905, 1910, 1945, 1969, 1984, 1999, 2010, 2015, 2024, 2099]
DECIMALS = ["0.5", "1.5", "3.14159", "2.718", "0.001", "10.01", "99.9", "123.456", "1,234.5", "0.25", "100.0"]
MONEY = ["1.00", "2.00", "0.01", "0.99", "1.01", "3.50", "19.99", "100.00", "1,250.75"]


def plain(words, dialect):
    words = words.replace(",", "")
    return words if dialect == "gb" else words.replace(" and ", " ")


def ordinal(number):
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}" + ("th" if 10 < number % 100 < 14 else ending)


rows = []
for dialect in ["us", "gb"]:
    for number in CARDINALS:
        rows.append(("cardinal", dialect, f"{number:,}", plain(num2words(number), dialect)))
    for number in ORDINALS:
        rows.append(("ordinal", dialect, ordinal(number), plain(num2words(number, to="ordinal"), dialect)))
for year in YEARS:
    rows.append(("year", "us", str(year), plain(num2words(year, to="year").replace("oh-", "oh "), "us")))
for number in DECIMALS:
    whole, fraction = number.replace(",", "").split(".")
    words = plain(num2words(int(whole)), "us") + " point " + " ".join(num2words(int(digit)) for digit in fraction)
    rows.append(("decimal", "us", number, words))
for amount in MONEY:
    words = num2words(float(amount.replace(",", "")), to="currency", currency="USD", separator=" and")
    words = words.replace(" and zero cents", "")
    whole, *cents = words.split(" and ") if float(amount.replace(",", "")) < 100 else words.rsplit(" and ", 1)
    words = " and ".join([plain(whole, "us"), *cents])
    words = words.removeprefix("zero dollars and ")
    rows.append(("money", "us", f"${amount}", words))

table = "".join("\t".join(row) + "\n" for row in rows)
(HERE / "spoken_numbers.tsv").write_text("# Written by make_spoken.py: class, voice, written, spoken.\n" + table)
print(len(rows), "pairs")
