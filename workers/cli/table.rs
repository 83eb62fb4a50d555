//! Tables: no borders, headings in capitals, as wide as the terminal at most.

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table, presets,
};

use aftercommit::state::State;

/// A table under construction.
pub(crate) struct Grid {
    table: Table,
}

impl Grid {
    /// A table with these columns. On a terminal it is as wide as the terminal at most; elsewhere lines are never broken.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        // The terminal is asked by anstream when it is printed, so that NO_COLOR and pipes are honoured in one place.
        table.enforce_styling();
        table.set_header(columns.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self { table }
    }

    /// At most this wide, terminal or not.
    #[cfg(test)]
    pub(crate) fn width(mut self, width: u16) -> Self {
        self.table.set_width(width);
        self
    }

    /// Columns that are never broken: numbers, states, names.
    pub(crate) fn unbroken(mut self, columns: &[usize]) -> Self {
        for &column in columns {
            if let Some(column) = self.table.column_mut(column) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        self
    }

    /// Columns of numbers, aligned to the right.
    pub(crate) fn numbers(mut self, columns: &[usize]) -> Self {
        for &column in columns {
            if let Some(column) = self.table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    /// One more row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.table.add_row(cells);
    }
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.table.trim_fmt())
    }
}

/// A plain cell.
pub(crate) fn cell(text: impl ToString) -> Cell {
    Cell::new(text)
}

/// A cell for something that may be absent.
pub(crate) fn maybe(text: Option<impl ToString>) -> Cell {
    text.map_or_else(|| Cell::new("-").add_attribute(Attribute::Dim), |text| Cell::new(text))
}

/// A state, coloured by what it asks of a person.
pub(crate) fn state(state: State, held_by: Option<&str>) -> Cell {
    let words = held_by.map_or_else(|| state.to_string(), |why| format!("{state} ({why})"));
    let cell = Cell::new(words);
    match state {
        State::InDoubt => cell.fg(Color::Yellow).add_attribute(Attribute::Bold),
        State::Failed => cell.fg(Color::Red),
        State::Succeeded => cell.fg(Color::Green),
        State::InFlight | State::Retrying => cell.fg(Color::Cyan),
        State::Cancelled | State::Expired => cell.add_attribute(Attribute::Dim),
        State::Waiting | State::Scheduled | State::Ready => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_to_its_width_and_breaks_only_what_it_may() {
        let mut grid = Grid::new(&["ID", "KEY", "STATE"]).width(60).unbroken(&[0, 2]);
        grid.row(vec![cell(1_234_567), cell("k".repeat(200)), state(State::InDoubt, None)]);
        let text = anstream::adapter::strip_str(&grid.to_string()).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 60, "too wide: {line:?}");
        }
        assert!(text.contains("1234567") && text.contains("in_doubt"), "{text}");
    }
}
