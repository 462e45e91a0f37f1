//! Plain tables: the first column left-aligned, the others right-aligned.

/// Rows of cells; all rows have as many cells as the head.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these column heads.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; n_columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for (i, row) in self.rows.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["part", "nodes"]);
        table.row(["0", "1,000"]);
        table.row(["longer", "7"]);
        assert_eq!(table.to_string(), "  part    nodes\n  0       1,000\n  longer      7");
    }
}
