//! Plain tables: a row of headings, then rows. Columns are two spaces apart, and lines have no trailing spaces.

use std::io::{self, Write};

/// Table that is written once all its cells are known.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// Creates an empty table. A heading that begins with `>` marks a column of numbers, aligned to the right.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let headings = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![headings], right }
    }

    /// Adds a row, one cell for each heading.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.right.len(), "a cell for each heading");
        self.rows.push(cells.into());
    }

    /// Writes the table.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut widths = vec![0; self.right.len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(printed(cell).chars().count());
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                let cell = printed(cell);
                let gap = " ".repeat(width - cell.chars().count());
                let (before, after) = if *right { (gap.as_str(), "") } else { ("", gap.as_str()) };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Cell on one line without control characters, because names and paths come from files.
fn printed(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">SIZE", "PATH"]);
        table.row(["a".into(), "6.3 MB".into(), "/x".into()]);
        table.row(["größer".into(), "1 B".into(), String::new()]);
        table.row(["\u{1b}[31m".into(), String::new(), "two\nlines".into()]);
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        let expected =
            "NAME      SIZE  PATH\na       6.3 MB  /x\ngrößer     1 B\n?[31m           two?lines\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
