//! Tables: no borders, headings in capitals, as wide as the terminal at most. Where one would be wider, its long texts move
//! to lines of their own below their rows, and its keys are cut in the middle.

use std::fmt;

use aftercommit::{state::State, visible::clean};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::output::{width, wrapped};

/// Between two columns.
const GAP: usize = 2;
/// A text that is cut keeps this much: enough to tell two keys apart.
const CUT_MIN: usize = 12;
/// What stands below a row is indented by this much.
const BELOW: usize = 4;

const PLAIN: &str = "";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// One cell: text that is safe to print, and how it looks.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: &'static str,
}

/// A table under construction.
pub(crate) struct Grid {
    heads: Vec<&'static str>,
    numbers: Vec<usize>,
    cut: Vec<usize>,
    below: Vec<usize>,
    rows: Vec<Vec<Cell>>,
    width: usize,
}

impl Grid {
    /// A table with these columns. On a terminal it is as wide as the terminal at most; elsewhere, as `COLUMNS` says, or as
    /// wide as it likes.
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self {
            heads: columns.to_vec(),
            numbers: Vec::new(),
            cut: Vec::new(),
            below: Vec::new(),
            rows: Vec::new(),
            width: width(),
        }
    }

    /// At most this wide, whatever the terminal says.
    #[cfg(test)]
    pub(crate) fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Columns of numbers, aligned to the right.
    pub(crate) fn numbers(mut self, columns: &[usize]) -> Self {
        self.numbers = columns.to_vec();
        self
    }

    /// Columns of keys and names, which are cut in the middle where there is no room.
    pub(crate) fn cut(mut self, columns: &[usize]) -> Self {
        self.cut = columns.to_vec();
        self
    }

    /// Columns that move below their row where there is no room, the first one first.
    pub(crate) fn below(mut self, columns: &[usize]) -> Self {
        self.below = columns.to_vec();
        self
    }

    /// One more row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.heads.len(), "a row has a cell for every column");
        self.rows.push(cells);
    }

    /// The widest text of each column, its heading included.
    fn widths(&self) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].text.width());
            cells.chain([self.heads[column].width()]).max().unwrap_or(0)
        };
        (0..self.heads.len()).map(widest).collect()
    }

    /// The columns that stay in the row with their widths, and those that move below it.
    fn layout(&self) -> (Vec<(usize, usize)>, Vec<usize>) {
        let widths = self.widths();
        let least = |column: usize| {
            let floor = CUT_MIN.max(self.heads[column].width());
            if self.cut.contains(&column) { widths[column].min(floor) } else { widths[column] }
        };
        let total = |columns: &[(usize, usize)]| {
            columns.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP)
        };
        let mut moved = Vec::new();
        let mut narrowest: Vec<(usize, usize)> =
            (0..widths.len()).map(|column| (column, least(column))).collect();
        for &column in &self.below {
            if total(&narrowest) <= self.width {
                break;
            }
            narrowest.retain(|(other, _)| *other != column);
            moved.push(column);
        }
        moved.sort_unstable();
        // What room there is goes to the column that lacks most.
        let mut room = self.width.saturating_sub(total(&narrowest));
        while let Some(neediest) = narrowest
            .iter_mut()
            .filter(|(column, width)| widths[*column] > *width)
            .max_by_key(|(column, width)| widths[*column] - *width)
            .filter(|_| room > 0)
        {
            neediest.1 += 1;
            room -= 1;
        }
        (narrowest, moved)
    }

    fn line(&self, cells: &[Cell], columns: &[(usize, usize)]) -> String {
        let mut line = String::new();
        for (at, &(column, width)) in columns.iter().enumerate() {
            let cell = &cells[column];
            let text = cut_in_the_middle(&cell.text, width);
            let pad = width.saturating_sub(text.width());
            let right = self.numbers.contains(&column);
            let (before, after) = if right { (pad, 0) } else { (0, pad) };
            line.push_str(&" ".repeat(if at == 0 { before } else { before + GAP }));
            line.push_str(cell.style);
            line.push_str(&text);
            line.push_str(if cell.style.is_empty() { PLAIN } else { RESET });
            line.push_str(&" ".repeat(after));
        }
        line.truncate(line.trim_end_matches(' ').len());
        line
    }

    fn write_below(&self, f: &mut fmt::Formatter<'_>, row: &[Cell], moved: &[usize]) -> fmt::Result {
        for &column in moved {
            let text = &row[column].text;
            if text.is_empty() || text == "-" {
                continue;
            }
            let line = format!("{:BELOW$}{}: {text}", "", self.heads[column].trim().to_lowercase());
            write!(f, "\n{}", wrapped(&line, self.width, BELOW))?;
        }
        Ok(())
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (columns, moved) = self.layout();
        let heads: Vec<Cell> =
            self.heads.iter().map(|head| Cell { text: (*head).to_owned(), style: BOLD }).collect();
        f.write_str(&self.line(&heads, &columns))?;
        for row in &self.rows {
            write!(f, "\n{}", self.line(row, &columns))?;
            self.write_below(f, row, &moved)?;
        }
        Ok(())
    }
}

/// `text` in at most `width` columns: its beginning, `…`, and its end.
fn cut_in_the_middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let head = taken(text.chars(), room.div_ceil(2));
    let tail = taken(text.chars().rev(), room / 2);
    format!("{head}…{}", tail.chars().rev().collect::<String>())
}

/// As many characters as fit into `width`.
fn taken(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut left = width;
    chars
        .take_while(|c| {
            let wide = c.width().unwrap_or(0);
            let fits = wide <= left;
            left = left.saturating_sub(wide);
            fits
        })
        .collect()
}

/// A plain cell.
pub(crate) fn cell(text: impl ToString) -> Cell {
    Cell { text: clean(&text.to_string()).into_owned(), style: PLAIN }
}

/// A cell for something that may be absent.
pub(crate) fn maybe(text: Option<impl ToString>) -> Cell {
    text.map_or_else(|| Cell { text: "-".to_owned(), style: DIM }, cell)
}

/// A state in words, with what holds it.
pub(crate) fn state_words(state: State, held_by: Option<&str>) -> String {
    held_by.map_or_else(|| state.to_string(), |why| format!("{state} ({why})"))
}

/// A state, coloured by what it asks of a person.
pub(crate) fn state(state: State, held_by: Option<&str>) -> Cell {
    let style = match state {
        State::InDoubt => "\x1b[1m\x1b[33m",
        State::Failed => "\x1b[31m",
        State::Succeeded => "\x1b[32m",
        State::InFlight | State::Retrying => "\x1b[36m",
        State::Cancelled | State::Expired => DIM,
        State::Waiting | State::Scheduled | State::Ready => PLAIN,
    };
    Cell { style, ..cell(state_words(state, held_by)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(grid: &Grid) -> String {
        anstream::adapter::strip_str(&grid.to_string()).to_string()
    }

    fn effects(width: usize) -> Grid {
        let mut grid = Grid::new(&["ID", "DOWNSTREAM", "KEY", "STATE", "ERROR"])
            .width(width)
            .numbers(&[0])
            .cut(&[1, 2])
            .below(&[4]);
        let error = "connection refused by the other side, and then by the one behind it";
        let key = format!("order-{}/charge", "k".repeat(200));
        grid.row(vec![
            cell(1_234_567),
            cell("payments"),
            cell(key),
            state(State::InDoubt, Some("pause")),
            cell(error),
        ]);
        grid.row(vec![cell(1), cell("mail"), cell("é\u{202e}\n"), state(State::Ready, None), cell("")]);
        grid
    }

    #[test]
    fn a_table_keeps_to_its_width_and_never_breaks_a_heading() {
        for width in [60, 80, 120] {
            let text = plain(&effects(width));
            for line in text.lines() {
                assert!(line.width() <= width && line.trim_end() == line, "{width}: {line:?}");
            }
            assert!(text.lines().next().unwrap().contains("DOWNSTREAM"), "{text}");
            assert!(
                text.contains("in_doubt (pause)") && text.contains("order-") && text.contains('…'),
                "{text}"
            );
            let below = text.contains("\n    error: connection refused");
            assert_eq!(below, width < 120, "{text}");
            assert!(text.contains(r"é\u{202e}\n"), "{text}");
        }
    }

    #[test]
    fn a_table_that_nobody_limits_has_a_line_per_row() {
        let text = plain(&effects(usize::MAX));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains('…') && text.contains("behind it"), "{text}");
    }

    #[test]
    fn a_text_is_cut_in_its_middle() {
        assert_eq!(cut_in_the_middle("order-12345/charge", 9), "orde…arge");
        assert_eq!(cut_in_the_middle("日本語日本語", 6), "日…語");
        assert_eq!(cut_in_the_middle("short", 5), "short");
    }
}
